"""Computes the 95th percentile of recently finished requests from a histogram that only grows.

The difference of two snapshots is the histogram of the requests between them: no single duration is stored.
The error is below a bucket's width. Above the last edge the result is that edge, which is too low.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

MIN_REQUESTS = 20  # Minimum of finished requests for a percentile: of fewer the 95th is just the slowest one
# Seconds without a finished request after which the percentile is unknown, as long as until telemetry is
# blind. Otherwise a slow past would reject all requests, and without requests nothing could disprove it.
EXPIRE_AFTER_S = 30.0
# Time for which an SLO once met counts as reachable; chosen, well above the length of an overload.
REACHABLE_FOR_S = 600.0


class LatencyPercentile:
    """Tracks the 95th percentile of the newest 20 or more finished requests, as few as the snapshots allow.

    ``edges_s`` are the rising upper edges of the buckets: an edge belongs to the bucket below it.
    """

    def __init__(self, edges_s: Sequence[float]) -> None:
        self._edges_s = (0.0, *edges_s)
        self.snapshots: deque[tuple[int, ...]] = deque([(0,) * (len(edges_s) + 1)])
        self._finished_s = 0.0
        self._value_s: float | None = None
        self._met_s = -math.inf

    def update(self, counts: Sequence[int], now: float) -> float | None:
        """Add the requests finished since the start, by bucket; return the percentile, s.

        None before 20 have finished, and after 30 s without a finished request.
        """
        snapshot = tuple(counts)
        # Counts shrink when counting began anew.
        if any(count < previous for count, previous in zip(snapshot, self.snapshots[-1], strict=True)):
            self._restart_from((0,) * len(snapshot))
        if snapshot != self.snapshots[-1]:
            self.snapshots.append(snapshot)
            self._finished_s = now
            self._value_s = self._measure()
        elif now - self._finished_s > EXPIRE_AFTER_S:
            self._restart_from(self.snapshots[-1])
        return self._value_s

    def was_met(self, slo_s: float, now: float) -> bool:
        """Return whether the newest percentile, or one within the last ten minutes, met the objective."""
        # One that was never met says nothing about load: 2 s are out of reach for longer streams. Taken for
        # load it would reject all requests each time the percentile expires.
        if self._value_s is not None and self._value_s <= slo_s:
            self._met_s = now
        return now - self._met_s <= REACHABLE_FOR_S

    def _restart_from(self, snapshot: tuple[int, ...]) -> None:
        self.snapshots = deque([snapshot])
        self._value_s = None

    def _measure(self) -> float | None:
        snapshots, finished = self.snapshots, sum(self.snapshots[-1])
        while len(snapshots) > 1 and finished - sum(snapshots[1]) >= MIN_REQUESTS:
            snapshots.popleft()
        between = [new - old for new, old in zip(snapshots[-1], snapshots[0], strict=True)]
        if sum(between) < MIN_REQUESTS:
            return None
        # Whole numbers as long as possible: 0.95 n must not be rounded across a rank.
        wanted, below = 19 * sum(between), 0
        for count, low_s, high_s in zip(between, self._edges_s, self._edges_s[1:], strict=False):
            if 20 * (below + count) >= wanted:
                return low_s + (high_s - low_s) * (wanted - 20 * below) / (20 * count)
            below += count
        return self._edges_s[-1]
