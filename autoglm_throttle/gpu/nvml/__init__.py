"""Reads NVIDIA devices through NVML."""
