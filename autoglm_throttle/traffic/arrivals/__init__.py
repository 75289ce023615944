"""Arrivals: shapes of load, arrival processes, who sends, and the plan they make. Pure."""

from autoglm_throttle.traffic.arrivals.crowd import MIX, Crowd, parse_mix
from autoglm_throttle.traffic.arrivals.draw import Arrivals, plan, replay
from autoglm_throttle.traffic.arrivals.plan import Plan
from autoglm_throttle.traffic.arrivals.shape import MAX_PLANNED, Level, Shape, duration

__all__ = [
    "MAX_PLANNED",
    "MIX",
    "Arrivals",
    "Crowd",
    "Level",
    "Plan",
    "Shape",
    "duration",
    "parse_mix",
    "plan",
    "replay",
]
