"""Schedules the reads of a source: its interval by the load, its retries and its back-off.

The interval grows slowly while the load stays low, and shrinks at once: bursts of load come in groups.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle._runtime import backoff_s

# Loads below which the next slower step is allowed; a requirement of the project, as the steps are.
LOAD_THRESHOLDS: Final = (0.7, 0.3)
STEPS: Final = (1.0, 5.0, 10.0)  # The time between two readings at each step, as a multiple of the shortest
# Time for which a slower step must have been allowed: 10 s would hardly separate a pause from an end.
STEP_DELAY_S: Final = 30.0
# Failed reads that are repeated at the normal interval: a single hiccup needs no drastic step.
RETRIES: Final = 3
# Pause before the next search for a source that was not there at all, such as a driver loaded later.
NO_SOURCE_PAUSE_S: Final = 60.0


class AdaptiveInterval:
    """Chooses the time between two readings by the load, from ``interval_s`` to ``max_s``."""

    def __init__(self, interval_s: float, max_s: float) -> None:
        if not 0.0 < interval_s <= max_s < math.inf:
            raise ValueError(f"0 < interval_s <= max_s is needed, not {interval_s!r} and {max_s!r}")
        # The shortest time; above it, sampling is idle and a request wakes it.
        self.interval_s: float = interval_s
        self._max_s = max_s
        self._step = 0
        self._slower_since_s: float | None = None

    def next(self, load: float | None, urgent: bool, now: float) -> float:
        """Choose the seconds between two reads: faster at once, slower by one step after 30 s.

        The load is 0..1 and above; None: not known. It does not count while it is ``urgent``.
        """
        allowed = 0 if urgent or load is None else sum(load < border for border in LOAD_THRESHOLDS)
        if allowed <= self._step:
            self._step, self._slower_since_s = allowed, None
        elif self._slower_since_s is None:
            self._slower_since_s = now
        # One step at a time; the delay restarts with each step.
        elif now - self._slower_since_s >= STEP_DELAY_S:
            self._step, self._slower_since_s = self._step + 1, now
        return min(STEPS[self._step] * self.interval_s, self._max_s)


class Schedule:
    """Turns the outcome of a read into the time of the next one; the first is due at once.

    `set_interval` and `wake` may be called from any thread: each is one assignment.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s: float = 0.0
        self.set_interval(interval_s)
        self.consecutive_failures: int = 0
        self.reopens: bool = False  # Whether the next read closes and reopens the driver first
        # Time of the next read, and of the tick before it: infinite for a pause, which nothing shortens.
        self._plan = (-math.inf, math.inf)
        self._started_s = -math.inf
        self._is_woken = False

    @property
    def due_s(self) -> float:
        """Time of the next read. A tick comes sooner if the interval became shorter, never later."""
        due_s, tick_s = self._plan
        return min(due_s, tick_s + self.interval_s)

    def wait_s(self, now: float, min_interval_s: float) -> float:
        """Return the seconds until the next read; not even `wake` starts one within ``min_interval_s``."""
        due_s = self.due_s
        if self._is_woken:
            due_s = min(due_s, self._started_s + min_interval_s)
        return max(0.0, due_s - now)

    def begin(self, now: float) -> None:
        """Record the start of a read."""
        self._started_s, self._is_woken = now, False

    def succeeded(self, now: float) -> None:
        """Plan the read after one that gave samples."""
        self.consecutive_failures = 0
        self._plan_tick(now)

    def failed(self, now: float) -> None:
        """Plan the read after a failed one: 3 at the interval, then after 1 to 60 s with a new driver."""
        self.consecutive_failures += 1
        nth = self.consecutive_failures - RETRIES
        if nth <= 0:
            self._plan_tick(now)
        else:
            self._plan_pause(now + max(self.interval_s, backoff_s(nth)), reopens=True)

    def no_source(self, now: float) -> None:
        """Plan the read after one that found no source; this is not a failure."""
        self.consecutive_failures = 0
        self._plan_pause(now + max(self.interval_s, NO_SOURCE_PAUSE_S))

    def read_at_once(self) -> None:
        """Make the next read due now."""
        self._plan_pause(-math.inf)

    def end(self) -> None:
        """Plan no further read."""
        self._plan_pause(math.inf)

    def wake(self) -> None:
        """Make the next read due, but not faster than the provider allows."""
        self._is_woken = True

    def set_interval(self, interval_s: float) -> None:
        """Change the interval: a shorter one counts from the last read, a longer one from the next."""
        if not 0.0 < interval_s < math.inf:
            raise ValueError(f"interval_s must be a finite number above 0, not {interval_s!r}")
        self.interval_s = interval_s

    def _plan_tick(self, now: float) -> None:
        """Plan the first tick of the grid begun with the last read that has not passed."""
        started_s, interval_s = self._started_s, self.interval_s
        ticks = max(1, math.ceil((now - started_s) / interval_s))
        tick_s = started_s + interval_s * (ticks - 1)
        self._plan, self.reopens = (tick_s + interval_s, tick_s), False

    def _plan_pause(self, due_s: float, *, reopens: bool = False) -> None:
        self._plan, self.reopens = (due_s, math.inf), reopens
