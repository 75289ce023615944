"""Parses the offered load of a command line: a shape, users, or the times of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.shape import SHAPE_SYNTAX, LoadShape
from autoglm_throttle.traffic.plan.users import USERS_SYNTAX, Users

GRAMMAR = f"{SHAPE_SYNTAX}, {USERS_SYNTAX} or trace:PATH; rates are requests/s, durations take ms, s or m"
"""Syntax accepted by `parse_shape`."""


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The times of a recording or a trace file.

    Raises:
        TrafficError: an empty path.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path:
            raise TrafficError("trace: needs the path of a recording or of a trace file")


def parse_shape(text: str) -> LoadShape | Users | TraceShape:
    """Parse a shape, a number of users or a trace.

    Raises:
        TrafficError: an unknown shape (the text names the known ones), or an impossible number.
    """
    kind, _, rest = text.strip().partition(":")
    reader = _READERS.get(kind)
    if reader is None:
        raise TrafficError(f"unknown shape {text!r}: expected {GRAMMAR}")
    return TraceShape(rest) if reader is TraceShape else reader(text)


_READERS: dict[str, Callable[[str], LoadShape | Users | TraceShape]] = {
    **dict.fromkeys(("fixed", "step", "spike", "ramp"), LoadShape.parse),
    "users": Users.parse,
    "trace": TraceShape,
}
