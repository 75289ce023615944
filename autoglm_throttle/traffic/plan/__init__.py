"""Plans of load: shapes, arrival processes, priorities and clients. Pure."""

from autoglm_throttle.traffic.plan.load_plan import (
    MIX,
    Arrivals,
    LoadPlan,
    PriorityMix,
    format_plan,
    make_plan,
    make_replay_plan,
    parse_mix,
)
from autoglm_throttle.traffic.plan.shapes import (
    GRAMMAR,
    MAX_PLANNED,
    LoadLevel,
    LoadShape,
    TraceShape,
    Users,
    parse_duration,
    parse_number,
    parse_shape,
)

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
