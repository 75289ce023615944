"""The newest results of a breaker, counted: the last so many calls, or those of the last so many seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

BUCKETS: Final = 10
"""Parts of a window of time: a result counts for nine to ten tenths of it, and ten sums are kept, not each result."""


class Counts(NamedTuple):
    """Results in a window."""

    calls: int
    failures: int
    slow: int


class Window(Protocol):
    """What the rules of rates look at."""

    def add(self, *, failed: bool, slow: bool, now: float) -> None:
        """Count one result."""
        ...

    def counts(self, now: float) -> Counts:
        """What the window holds; free of effects."""
        ...

    def clear(self) -> None:
        """Forget all results."""
        ...


class CountWindow:
    """The last ``size`` results, in order of completion.

    Args:
        size: >= 1.
    """

    __slots__ = ("_failures", "_results", "_size", "_slow")

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: deque[tuple[bool, bool]] = deque()
        self._failures = self._slow = 0

    def add(self, *, failed: bool, slow: bool, now: float) -> None:  # noqa: ARG002 - the same for both windows
        """Count one result, and no longer the oldest if there are too many."""
        if len(self._results) == self._size:
            old_failed, old_slow = self._results.popleft()
            self._failures -= old_failed
            self._slow -= old_slow
        self._results.append((failed, slow))
        self._failures += failed
        self._slow += slow

    def counts(self, now: float) -> Counts:  # noqa: ARG002 - the same for both windows
        """What the window holds."""
        return Counts(len(self._results), self._failures, self._slow)

    def clear(self) -> None:
        """Forget all results."""
        self._results.clear()
        self._failures = self._slow = 0


@dataclass(slots=True)
class _Bucket:
    start_s: float
    calls: int = 0
    failures: int = 0
    slow: int = 0


class TimeWindow:
    """The results of the last ``length_s`` seconds, in at most `BUCKETS` sums.

    A bucket begins with its first result, so no result depends on how the clock's zero lies. It takes results for a
    tenth of the window and counts for the whole of it: each result counts for 0.9 to 1.0 of ``length_s``.

    Args:
        length_s: > 0.
    """

    __slots__ = ("_bucket_s", "_buckets", "_length_s")

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._bucket_s = length_s / BUCKETS
        self._buckets: deque[_Bucket] = deque()

    def add(self, *, failed: bool, slow: bool, now: float) -> None:
        """Count one result; a clock that went back reads as standing still."""
        buckets = self._buckets
        while buckets and now - buckets[0].start_s >= self._length_s:
            buckets.popleft()
        if not buckets or now - buckets[-1].start_s >= self._bucket_s:
            buckets.append(_Bucket(now))
        newest = buckets[-1]
        newest.calls += 1
        newest.failures += failed
        newest.slow += slow

    def counts(self, now: float) -> Counts:
        """What the window holds; free of effects."""
        live = [bucket for bucket in self._buckets if now - bucket.start_s < self._length_s]
        return Counts(
            sum(bucket.calls for bucket in live),
            sum(bucket.failures for bucket in live),
            sum(bucket.slow for bucket in live),
        )

    def clear(self) -> None:
        """Forget all results."""
        self._buckets.clear()
