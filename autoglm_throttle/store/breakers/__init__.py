"""Breakers shared by the processes of a fleet, in a Redis."""
