"""Plans of load: shapes, arrival processes, priorities and clients. Pure."""

from autoglm_throttle.traffic.arrivals.crowd import MIX, PriorityMix, parse_mix
from autoglm_throttle.traffic.arrivals.draw import make_plan, make_replay_plan
from autoglm_throttle.traffic.arrivals.offered import GRAMMAR, TraceShape, parse_shape
from autoglm_throttle.traffic.arrivals.plan import LoadPlan
from autoglm_throttle.traffic.arrivals.process import Arrivals
from autoglm_throttle.traffic.arrivals.shape import MAX_PLANNED, LoadLevel, LoadShape
from autoglm_throttle.traffic.arrivals.timetable import format_plan
from autoglm_throttle.traffic.arrivals.users import Users
from autoglm_throttle.traffic.arrivals.words import parse_duration, parse_number

__all__ = [
    "GRAMMAR",
    "MAX_PLANNED",
    "MIX",
    "Arrivals",
    "PriorityMix",
    "LoadLevel",
    "LoadPlan",
    "LoadShape",
    "TraceShape",
    "Users",
    "parse_duration",
    "parse_number",
    "parse_mix",
    "parse_shape",
    "make_plan",
    "make_replay_plan",
    "format_plan",
]
