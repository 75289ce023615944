"""Windows of a breaker's newest results, by number of calls or by time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

BUCKETS: Final = 10
"""Buckets of a time window: sums use constant memory, but the window's end is blurred by one bucket."""


class OutcomeCounts(NamedTuple):
    """Results in a window."""

    calls: int
    failures: int
    slow: int


EMPTY_COUNTS: Final = OutcomeCounts(0, 0, 0)


class OutcomeWindow(Protocol):
    """Window of results that the failure-rate and slow-rate rules evaluate."""

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:
        """Count one result and return the new counts."""
        ...

    def counts(self, now: float) -> OutcomeCounts:
        """Return the current counts. Has no effects."""
        ...

    def clear(self) -> None:
        """Discard all results."""
        ...


class CountWindow:
    """The last ``size`` results, in the order in which the calls ended.

    Args:
        size: >= 1.
    """

    __slots__ = ("_failures", "_results", "_slow")

    def __init__(self, size: int) -> None:
        self._results: deque[tuple[bool, bool]] = deque(maxlen=size)
        self._failures = self._slow = 0

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:  # noqa: ARG002 - as `counts`
        """Count one result; a full window drops its oldest."""
        results = self._results
        if len(results) == results.maxlen:
            old_failed, old_slow = results[0]
            self._failures -= old_failed
            self._slow -= old_slow
        results.append((failed, slow))
        self._failures += failed
        self._slow += slow
        return OutcomeCounts(len(results), self._failures, self._slow)

    def counts(self, now: float) -> OutcomeCounts:  # noqa: ARG002 - a window of time has to know it
        """Return the current counts."""
        return OutcomeCounts(len(self._results), self._failures, self._slow)

    def clear(self) -> None:
        """Discard all results."""
        self._results.clear()
        self._failures = self._slow = 0


@dataclass(slots=True)
class _Bucket:
    start_s: float
    calls: int
    failures: int
    slow: int


class TimeWindow:
    """The results of the last ``length_s`` seconds, in at most `BUCKETS` sums.

    A bucket starts with its first result, so the clock's zero does not matter. It collects results for a
    tenth of the window and expires as a whole: each result counts for nine to ten tenths of the window.

    Args:
        length_s: > 0.
    """

    __slots__ = ("_bucket_s", "_length_s", "buckets")

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._bucket_s = length_s / BUCKETS
        self.buckets: deque[_Bucket] = deque()
        """Sums of the window, the oldest first."""

    def add(self, failed: bool, slow: bool, now: float) -> OutcomeCounts:
        """Count one result. A clock that steps back is treated as standing still."""
        buckets = self.buckets
        while buckets and now - buckets[0].start_s >= self._length_s:
            buckets.popleft()
        if not buckets or now - buckets[-1].start_s >= self._bucket_s:
            buckets.append(_Bucket(now, 0, 0, 0))
        newest = buckets[-1]
        newest.calls += 1
        newest.failures += failed
        newest.slow += slow
        return self.counts(now)

    def counts(self, now: float) -> OutcomeCounts:
        """Return the current counts. Has no effects."""
        calls = failures = slow = 0
        for bucket in self.buckets:
            if now - bucket.start_s < self._length_s:
                calls += bucket.calls
                failures += bucket.failures
                slow += bucket.slow
        return OutcomeCounts(calls, failures, slow)

    def clear(self) -> None:
        """Discard all results."""
        self.buckets.clear()
