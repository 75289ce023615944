"""Round-trip time to Redis, and whether decisions can wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from autoglm_throttle.cli.doctor_result import DoctorResult, Severity
from autoglm_throttle.settings.field_types import plain

ROUND_TRIPS: Final = 9
"""Number of timed calls; the median of fewer would depend on a single odd one."""


def round_trip(times_s: Sequence[float], deadline_s: float) -> DoctorResult:
    """Evaluate some round trips to Redis.

    Args:
        times_s: at least one.
        deadline_s: longest wait of a decision.
    """
    median_s = median(times_s)
    text = f"round trip {median_s * 1e3:.2f} ms, median of {len(times_s)}"
    value = round(median_s, 6)
    if median_s <= deadline_s / 2:
        return DoctorResult("redis", "round_trip", Severity.OK, text, value=value)
    hint = (
        f"decisions wait at most REDIS_DEADLINE_S, {plain(deadline_s * 1e3)} ms: "
        "run the store closer to the service, or raise the deadline"
    )
    severity = Severity.FAIL if median_s > deadline_s else Severity.WARN
    return DoctorResult("redis", "round_trip", severity, text, hint, value)
