"""Waits that end exactly at an instant, not a rounding error before it."""

from __future__ import annotations

import math


def seconds_until(instant: float, now: float) -> float:
    """Return the seconds after ``now`` until the clock shows ``instant``; 0 if it does already."""
    if instant <= now:
        return 0.0
    wait = instant - now
    # The difference of two floats may be rounded down: a retry at that time would be rejected again.
    while now + wait < instant:
        wait = math.nextafter(wait, math.inf)
    return wait
