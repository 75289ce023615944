"""Classifies each GPU (idle, productive, stalled ...) from several signals over time."""
