"""The demonstration: a simulated service behind the throttle, real HTTP on loopback, and a live view."""
