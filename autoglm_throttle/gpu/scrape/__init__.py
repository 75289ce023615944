"""Reads exporters, Prometheus servers and inference engines over HTTP."""
