"""Round-trip time to a store, and whether decisions can wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from autoglm_throttle.cli.finding import Finding, Level
from autoglm_throttle.settings.quantity import plain

ROUND_TRIPS: Final = 9
"""Number of timed calls; the median of fewer would depend on a single odd one."""


def round_trip(part: str, times_s: Sequence[float], deadline_s: float) -> Finding:
    """Evaluate some round trips.

    Args:
        part: the examined part, such as ``redis``.
        times_s: at least one.
        deadline_s: longest wait of a decision.
    """
    middle = median(times_s)
    text = f"round trip {middle * 1e3:.2f} ms, median of {len(times_s)}"
    value = round(middle, 6)
    if middle <= deadline_s / 2:
        return Finding(part, "round_trip", Level.OK, text, value=value)
    hint = f"decisions wait at most REDIS_DEADLINE_S, {plain(deadline_s * 1e3)} ms: come nearer, or raise it"
    level = Level.FAIL if middle > deadline_s else Level.WARN
    return Finding(part, "round_trip", level, text, hint, value)
