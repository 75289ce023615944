"""Waits that end at an instant and not a rounding error before it."""

from __future__ import annotations

import math


def until(instant: float, now: float) -> float:
    """Seconds that must pass after ``now`` for the clock to show ``instant``; 0 if it does already.

    The difference of two floats may be rounded down, and who comes back then would be refused once more.
    """
    if instant <= now:
        return 0.0
    wait = instant - now
    while now + wait < instant:
        wait = math.nextafter(wait, math.inf)
    return wait
