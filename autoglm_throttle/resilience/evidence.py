"""What the results of calls say so far, and when that is enough to open."""

from __future__ import annotations

from autoglm_throttle.model import Trip
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.transitions import Event
from autoglm_throttle.resilience.window import Counts, CountWindow, TimeWindow, Window

_NOTHING = Counts(0, 0, 0)


class Evidence:
    """The streak of failures and the window of results of one breaker."""

    __slots__ = ("_consecutive", "_first_s", "_rules", "_window", "streak", "why")

    def __init__(self, rules: Rules) -> None:
        self.streak: int = 0
        """Failures in a row."""
        self.why: str = ""
        """The newest finding of `note` in figures."""
        self._first_s = 0.0
        self._rules = rules
        self._consecutive = Trip.CONSECUTIVE in rules.trip
        self._window = _window_for(rules)

    @property
    def settled(self) -> bool:
        """Whether one more success would change nothing."""
        return not self.streak and self._window is None

    def counts(self, now: float) -> Counts:
        """Results in the window; zeros where no rule looks at it."""
        return self._window.counts(now) if self._window is not None else _NOTHING

    def note(self, *, failed: bool, slow: bool, now: float) -> Event | None:
        """Count one result.

        Returns:
            The rule that is broken by now, if one is.
        """
        rules = self._rules
        if not failed:
            self.streak = 0
        elif self.streak and not self._outdated(now):
            self.streak += 1
        else:
            self.streak = 1
            self._first_s = now
        if self._consecutive and self.streak >= rules.failures:
            self.why = f"failures {self.streak}/{rules.failures}"
            return Event.FAILURES
        if self._window is None:
            return None
        self._window.add(failed=failed, slow=slow, now=now)
        return self._judged(self._window.counts(now))

    def clear(self) -> None:
        """Forget all results."""
        self.streak = 0
        if self._window is not None:
            self._window.clear()

    def _outdated(self, now: float) -> bool:
        within = self._rules.failure_window_s
        return within is not None and now - self._first_s > within

    def _judged(self, counts: Counts) -> Event | None:
        rules = self._rules
        if counts.calls < rules.min_calls:
            return None
        if Trip.FAILURE_RATE in rules.trip and counts.failures / counts.calls >= rules.failure_rate:
            self.why = f"failure rate {counts.failures}/{counts.calls}"
            return Event.FAILURE_RATE
        if Trip.SLOW_RATE in rules.trip and counts.slow / counts.calls >= rules.slow_rate:
            self.why = f"slow rate {counts.slow}/{counts.calls}"
            return Event.SLOW_RATE
        return None


def _window_for(rules: Rules) -> Window | None:
    if rules.trip <= {Trip.CONSECUTIVE}:
        return None
    return CountWindow(rules.window) if rules.window_s is None else TimeWindow(rules.window_s)
