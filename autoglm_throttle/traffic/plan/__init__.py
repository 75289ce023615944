"""Plans of load: shapes, arrival processes, priorities and clients. Pure."""

from autoglm_throttle.traffic.plan.arrival_times import format_plan
from autoglm_throttle.traffic.plan.draw_plan import make_plan, make_replay_plan
from autoglm_throttle.traffic.plan.load_plan import LoadPlan
from autoglm_throttle.traffic.plan.mix import MIX, PriorityMix, parse_mix
from autoglm_throttle.traffic.plan.parsing import parse_duration, parse_number
from autoglm_throttle.traffic.plan.process import Arrivals
from autoglm_throttle.traffic.plan.shape import MAX_PLANNED, LoadLevel, LoadShape
from autoglm_throttle.traffic.plan.shape_parser import GRAMMAR, TraceShape, parse_shape
from autoglm_throttle.traffic.plan.users import Users

__all__ = [
    "GRAMMAR",
    "MAX_PLANNED",
    "MIX",
    "Arrivals",
    "LoadLevel",
    "LoadPlan",
    "LoadShape",
    "PriorityMix",
    "TraceShape",
    "Users",
    "format_plan",
    "make_plan",
    "make_replay_plan",
    "parse_duration",
    "parse_mix",
    "parse_number",
    "parse_shape",
]
