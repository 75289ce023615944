"""Chooses the sampling interval: long while the load is low, short while it matters.

A reading ten times as often on a nearly idle device would show nothing earlier that matters,
and each reading costs the driver some work. So the interval grows while the load stays low.
It shrinks at once and grows slowly, because a burst of load is followed by another more often than not.
"""

from __future__ import annotations

import math
from typing import Final

LOAD_THRESHOLDS: Final = (0.7, 0.3)
"""Loads below which the next slower step is allowed; a requirement of the project, as the steps are."""

STEPS: Final = (1.0, 5.0, 10.0)
"""The time between two readings at each step, as a multiple of the shortest."""

STEP_DELAY_S: Final = 30.0
"""Time for which a slower step must have been allowed before it is taken. Ten samples at 1 s would hardly
separate a pause in the traffic from its end.
"""


class AdaptiveInterval:
    """Chooses the time between two readings by the load.

    Args:
        interval_s: the shortest time, used under any load; > 0.
        max_s: the longest time; not below ``interval_s``.

    Raises:
        ValueError: the times are not finite numbers, or not in this order.
    """

    __slots__ = ("_max_s", "_slower_since_s", "_step", "interval_s")

    def __init__(self, interval_s: float, max_s: float) -> None:
        if not 0.0 < interval_s <= max_s < math.inf:
            raise ValueError(f"0 < interval_s <= max_s is needed, not {interval_s!r} and {max_s!r}")
        self.interval_s: float = interval_s
        """The shortest time; above it, sampling is idle and a request wakes it."""
        self._max_s = max_s
        self._step = 0
        self._slower_since_s: float | None = None

    def __repr__(self) -> str:
        return f"AdaptiveInterval({self._chosen_s():g} s)"

    def next(self, load: float | None, urgent: bool, now: float) -> float:
        """Choose the interval again, at any time but best at each reading.

        Args:
            load: 0..1 and above, the greater of the signal and the occupancy of the concurrency limit; None:
                not known.
            urgent: whether a short interval is needed at any load: rates are reduced, the newest sample is
                not fresh, a device is lost, or a verdict is neither idle nor working.
            now: monotonic seconds.

        Returns:
            Seconds between two readings from now on. Faster at once; slower by one step for each
            30 s in which a slower one was allowed without a break.
        """
        allowed = 0 if urgent or load is None else sum(load < border for border in LOAD_THRESHOLDS)
        if allowed <= self._step:
            self._step, self._slower_since_s = allowed, None
        elif self._slower_since_s is None:
            self._slower_since_s = now
        # One step at a time; the delay restarts with each step.
        elif now - self._slower_since_s >= STEP_DELAY_S:
            self._step, self._slower_since_s = self._step + 1, now
        return self._chosen_s()

    def _chosen_s(self) -> float:
        return min(STEPS[self._step] * self.interval_s, self._max_s)
