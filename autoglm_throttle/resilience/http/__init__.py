"""Calls and answers of HTTP: how they are guarded, kept, and stand in for one another."""
