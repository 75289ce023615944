"""Failure statistics of a breaker, and the rules that open it."""

from __future__ import annotations

import math

from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.resilience.window import (
    EMPTY_COUNTS,
    CountWindow,
    OutcomeCounts,
    OutcomeWindow,
    TimeWindow,
)
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import TripRule


class FailureStats:
    """The streak of failures and the window of results of one breaker."""

    __slots__ = (
        "_failure_rate",
        "_failure_window_s",
        "_failures",
        "_first_s",
        "_min_calls",
        "_slow_rate",
        "_window",
        "last_failure",
        "streak",
        "trip_ratio",
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self.streak: int
        """Consecutive failures."""
        self.trip_ratio: str
        """Count and limit of the newest rule that `record` returned, such as ``5/5``; empty after `clear`."""
        self.last_failure: str = ""
        """Type and text of the newest failure; stays after `clear`."""
        self._first_s: float
        # Read with each result: an attribute of a pydantic model takes four times as long as one of these.
        self._failure_window_s = settings.failure_window_s
        self._min_calls = settings.min_calls
        # The limit of a rule that is not in force is infinite, so it is never reached.
        self._failures = settings.failures if TripRule.CONSECUTIVE in settings.trip else math.inf
        self._failure_rate = settings.failure_rate if TripRule.FAILURE_RATE in settings.trip else math.inf
        self._slow_rate = settings.slow_rate if TripRule.SLOW_RATE in settings.trip else math.inf
        self._window = _window_for(settings)
        self.clear()

    @property
    def success_is_noop(self) -> bool:
        """Whether one more success would change nothing."""
        return not self.streak and self._window is None

    def counts(self, now: float) -> OutcomeCounts:
        """Return the results in the window; zeros if no rule needs a window."""
        return EMPTY_COUNTS if self._window is None else self._window.counts(now)

    def record(self, failed: bool, slow: bool, now: float) -> BreakerEvent | None:
        """Count one result.

        Returns:
            The rule that opens the breaker now, or None.
        """
        if not failed:
            self.streak = 0
        elif self.streak and not self._is_expired(now):
            self.streak += 1
        else:
            self.streak = 1
            self._first_s = now
        if self.streak >= self._failures:
            self.trip_ratio = f"{self.streak}/{self._failures}"
            return BreakerEvent.FAILURES
        return None if self._window is None else self._exceeded_rate(self._window.add(failed, slow, now))

    def clear(self) -> None:
        """Discard all results."""
        self.streak = 0
        self.trip_ratio = ""
        if self._window is not None:
            self._window.clear()

    def _is_expired(self, now: float) -> bool:
        within_s = self._failure_window_s
        return within_s is not None and now - self._first_s > within_s

    def _exceeded_rate(self, counts: OutcomeCounts) -> BreakerEvent | None:
        calls, failures, slow = counts
        if calls < self._min_calls:
            return None
        if failures / calls >= self._failure_rate:
            self.trip_ratio = f"{failures}/{calls}"
            return BreakerEvent.FAILURE_RATE
        if slow / calls >= self._slow_rate:
            self.trip_ratio = f"{slow}/{calls}"
            return BreakerEvent.SLOW_RATE
        return None


def _window_for(settings: BreakerSettings) -> OutcomeWindow | None:
    if settings.trip <= {TripRule.CONSECUTIVE}:
        return None
    return CountWindow(settings.window) if settings.window_s is None else TimeWindow(settings.window_s)
