"""Breakers that the processes of a fleet share, in a Redis."""
