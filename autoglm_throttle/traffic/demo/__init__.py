"""The demonstration: a simulated service behind the throttle, real HTTP on loopback, and a live view."""

from autoglm_throttle.traffic.demo.command import add_arguments, run

__all__ = ["add_arguments", "run"]
