"""Results of the newest calls, and the rules by which they open a breaker."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import TripRule

# Buckets of a time window: sums use constant memory, but the window's end is blurred by one bucket.
BUCKETS: Final = 10
WINDOW_S: Final = 10.0  # Length of the window of a breaker without one of its own

OutcomeCounts = tuple[int, int, int]  # Calls, failures and slow calls in a window


@dataclass(slots=True)
class _Bucket:
    start_s: float
    calls: int = 0
    failures: int = 0
    slow: int = 0


class ResultWindow:
    """The last ``size`` results; None: those of the last ``length_s`` seconds in at most `BUCKETS` sums.

    In a window of time a bucket starts with its first result, collects results for a tenth of the window and
    expires as a whole: each result counts for nine to ten tenths of the window. In a window of calls each
    result has a bucket of its own.
    """

    def __init__(self, size: int | None, length_s: float) -> None:
        self._size = math.inf if size is None else size
        self._length_s = length_s if size is None else math.inf
        self._bucket_s = length_s / BUCKETS if size is None else -math.inf
        self._total = _Bucket(0.0)  # sums of all buckets, so that a long window need not be added up
        self.buckets: deque[_Bucket] = deque()  # the oldest first

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:
        """Count one result and return the new counts. A clock that steps back stands still."""
        buckets, total = self.buckets, self._total
        while buckets and (now - buckets[0].start_s >= self._length_s or len(buckets) >= self._size):
            oldest = buckets.popleft()
            total.calls -= oldest.calls
            total.failures -= oldest.failures
            total.slow -= oldest.slow
        if not buckets or now - buckets[-1].start_s >= self._bucket_s:
            buckets.append(_Bucket(now))
        for sums in (buckets[-1], total):
            sums.calls += 1
            sums.failures += failed
            sums.slow += slow
        return self.counts(now)

    def counts(self, now: float) -> OutcomeCounts:
        """Return the current counts. Has no effects."""
        total = self._total
        calls, failures, slow = total.calls, total.failures, total.slow
        for bucket in self.buckets:
            if now - bucket.start_s < self._length_s:
                break
            calls, failures, slow = calls - bucket.calls, failures - bucket.failures, slow - bucket.slow
        return calls, failures, slow


class FailureStats:
    """The streak of failures and the window of results of one breaker, and the rules that open it."""

    def __init__(self, settings: BreakerSettings) -> None:
        self.streak: int  # consecutive failures
        self.last_failure: str = ""  # type and text of the newest failure; stays after `clear`
        self._first_s = 0.0
        # Read with each result: an attribute of a pydantic model takes four times as long as one of these.
        self._failure_window_s = math.inf if settings.failure_window_s is None else settings.failure_window_s
        self._min_calls = settings.min_calls
        # The limit of a rule that is not in force is infinite, so it is never reached.
        self._failures = settings.failures if TripRule.CONSECUTIVE in settings.trip else math.inf
        self._failure_rate = settings.failure_rate if TripRule.FAILURE_RATE in settings.trip else math.inf
        self._slow_rate = settings.slow_rate if TripRule.SLOW_RATE in settings.trip else math.inf
        self._settings = settings
        self.clear()

    @property
    def success_is_noop(self) -> bool:
        """Whether one more success would change nothing."""
        return not self.streak and self._window is None

    def counts(self, now: float) -> OutcomeCounts:
        """Return the results in the window; zeros if no rule needs a window."""
        return (0, 0, 0) if self._window is None else self._window.counts(now)

    def record(self, failed: bool, slow: bool, now: float) -> BreakerEvent | None:
        """Count one result and return the rule that opens the breaker now, or None."""
        if not failed:
            self.streak = 0
        elif self.streak and now - self._first_s <= self._failure_window_s:
            self.streak += 1
        else:
            self.streak = 1
            self._first_s = now
        if self.streak >= self._failures:
            return BreakerEvent.FAILURES
        return None if self._window is None else self._exceeded_rate(self._window.add(failed, slow, now))

    def clear(self) -> None:
        """Discard all results."""
        self.streak = 0
        settings = self._settings
        needs_window = not settings.trip <= {TripRule.CONSECUTIVE}
        length_s = settings.window_s or WINDOW_S
        self._window = ResultWindow(settings.window, length_s) if needs_window else None

    def _exceeded_rate(self, counts: OutcomeCounts) -> BreakerEvent | None:
        calls, failures, slow = counts
        if calls < self._min_calls:
            return None
        if failures / calls >= self._failure_rate:
            return BreakerEvent.FAILURE_RATE
        if slow / calls >= self._slow_rate:
            return BreakerEvent.SLOW_RATE
        return None
