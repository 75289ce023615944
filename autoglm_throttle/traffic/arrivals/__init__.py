"""Plans of load: shapes, arrival processes, priorities and clients. Pure."""

from autoglm_throttle.traffic.arrivals.crowd import MIX, Crowd, parse_mix
from autoglm_throttle.traffic.arrivals.draw import plan, replay
from autoglm_throttle.traffic.arrivals.offered import GRAMMAR, TraceShape, parse_shape
from autoglm_throttle.traffic.arrivals.plan import Plan
from autoglm_throttle.traffic.arrivals.process import Arrivals
from autoglm_throttle.traffic.arrivals.shape import MAX_PLANNED, Level, Shape
from autoglm_throttle.traffic.arrivals.timetable import timetable
from autoglm_throttle.traffic.arrivals.users import Users
from autoglm_throttle.traffic.arrivals.words import duration, number

__all__ = [
    "GRAMMAR",
    "MAX_PLANNED",
    "MIX",
    "Arrivals",
    "Crowd",
    "Level",
    "Plan",
    "Shape",
    "TraceShape",
    "Users",
    "duration",
    "number",
    "parse_mix",
    "parse_shape",
    "plan",
    "replay",
    "timetable",
]
