"""Failure statistics of a breaker, and the rules that open it."""

from __future__ import annotations

from autoglm_throttle.model import Trip
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.transitions import Event
from autoglm_throttle.resilience.window import NOTHING, Counts, CountWindow, TimeWindow, Window


class Evidence:
    """The streak of failures and the window of results of one breaker."""

    __slots__ = ("_consecutive", "_first_s", "_rules", "_window", "figures", "streak")

    def __init__(self, rules: Rules) -> None:
        self.streak: int
        """Consecutive failures."""
        self.figures: str
        """Count and limit of the newest rule that `record` returned, such as ``5/5``."""
        self._first_s: float
        self._rules = rules
        self._consecutive = Trip.CONSECUTIVE in rules.trip
        self._window = _window_for(rules)
        self.clear()

    @property
    def settled(self) -> bool:
        """Whether one more success would change nothing."""
        return not self.streak and self._window is None

    def counts(self, now: float) -> Counts:
        """Return the results in the window; zeros if no rule needs a window."""
        return NOTHING if self._window is None else self._window.counts(now)

    def note(self, failed: bool, slow: bool, now: float) -> Event | None:
        """Count one result.

        Returns:
            The rule that opens the breaker now, or None.
        """
        if not failed:
            self.streak = 0
        elif self.streak and not self._outdated(now):
            self.streak += 1
        else:
            self.streak = 1
            self._first_s = now
        if self._consecutive and self.streak >= self._rules.failures:
            self.figures = f"{self.streak}/{self._rules.failures}"
            return Event.FAILURES
        return None if self._window is None else self._judged(self._window.add(failed, slow, now))

    def clear(self) -> None:
        """Discard all results."""
        self.streak = 0
        if self._window is not None:
            self._window.clear()

    def _outdated(self, now: float) -> bool:
        within_s = self._rules.failure_window_s
        return within_s is not None and now - self._first_s > within_s

    def _judged(self, counts: Counts) -> Event | None:
        rules = self._rules
        calls, failures, slow = counts
        if calls < rules.min_calls:
            return None
        if Trip.FAILURE_RATE in rules.trip and failures / calls >= rules.failure_rate:
            self.figures = f"{failures}/{calls}"
            return Event.FAILURE_RATE
        if Trip.SLOW_RATE in rules.trip and slow / calls >= rules.slow_rate:
            self.figures = f"{slow}/{calls}"
            return Event.SLOW_RATE
        return None


def _window_for(rules: Rules) -> Window | None:
    if rules.trip <= {Trip.CONSECUTIVE}:
        return None
    return CountWindow(rules.window) if rules.window_s is None else TimeWindow(rules.window_s)
