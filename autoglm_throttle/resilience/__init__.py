"""Calls that leave the process: breakers, fallbacks, and degradation on purpose."""
