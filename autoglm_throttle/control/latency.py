"""The 95th percentile of lately finished requests, read off a histogram that only grows.

The histogram is looked at from time to time. The difference of two looks is the histogram of what
has finished between them, so no single duration is kept.

How exact it is: of n durations the one of rank ceil(0.95 n) lies in the same bucket as the result, so
the error is smaller than the width of that bucket. Within a bucket durations are taken to be spread
evenly. Of those above the last edge nothing is known but that they are: then the result is the last
edge, which is too low by an unknown amount.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

ENOUGH = 20
"""Finished requests that a percentile is made of at least: of fewer the 95th is just the slowest one."""

FORGET_S = 30.0
"""Without a finished request for so long nothing is known any more, as long as until telemetry is blind.
Otherwise a slow past would shut the door, and behind a shut door no request could ever disprove it."""


REMEMBER_S = 600.0
"""For so long a service that has met its objective is believed to be able to; chosen, well above the length
of an overload that somebody would leave to a throttle."""


class P95:
    """Of the newest 20 or more finished requests: as few as the looks allow.

    Args:
        edges_s: rising upper edges of the buckets, in seconds; an edge belongs to the bucket below it,
            and the lowest bucket begins at 0.
    """

    __slots__ = ("_edges_s", "_finished_s", "_looks", "_value_s")

    def __init__(self, edges_s: Sequence[float]) -> None:
        self._edges_s = (0.0, *edges_s)
        self._looks: deque[tuple[int, ...]] = deque([(0,) * (len(edges_s) + 1)])
        self._finished_s = 0.0
        self._value_s: float | None = None

    def update(self, counts: Sequence[int], now: float) -> float | None:
        """Look again, and tell the percentile.

        Args:
            counts: requests that have finished since the start, by bucket, one more than there are edges;
                fewer in any of them than at the last look mean that counting began anew.
            now: monotonic seconds.

        Returns:
            Seconds; None before 20 have finished, and after 30 s in which none has.
        """
        look = tuple(counts)
        if any(count < seen for count, seen in zip(look, self._looks[-1], strict=True)):
            self._begin_at((0,) * len(look))
        if look != self._looks[-1]:
            self._looks.append(look)
            self._finished_s = now
            self._value_s = self._measure()
        elif now - self._finished_s > FORGET_S:
            self._begin_at(self._looks[-1])
        return self._value_s

    def _begin_at(self, look: tuple[int, ...]) -> None:
        self._looks = deque([look])
        self._value_s = None

    def _measure(self) -> float | None:
        looks, finished = self._looks, sum(self._looks[-1])
        while len(looks) > 1 and finished - sum(looks[1]) >= ENOUGH:
            looks.popleft()
        between = [new - old for new, old in zip(looks[-1], looks[0], strict=True)]
        return _percentile(between, self._edges_s) if sum(between) >= ENOUGH else None


class Reach:
    """Whether an objective can be met at all, where no gate knows how long an unloaded answer takes.

    An objective that was not met once in ten minutes says nothing about load: the default of 2 s is out of
    reach for answers that are streamed for longer. Taken for load it would shut the door, open it when the
    past is forgotten, and shut it again.
    """

    __slots__ = ("_met_s",)

    def __init__(self) -> None:
        self._met_s = -math.inf

    def update(self, p95_s: float | None, slo_s: float, now: float) -> bool:
        """Look again; False while the objective has not been met for ten minutes, or yet.

        Args:
            p95_s: 95th percentile of lately finished requests; None: not known.
            slo_s: the objective.
            now: monotonic seconds.
        """
        if p95_s is not None and p95_s <= slo_s:
            self._met_s = now
        return now - self._met_s <= REMEMBER_S


def _percentile(counts: Sequence[int], edges_s: Sequence[float]) -> float:
    """The 95th, by whole numbers as long as possible: 0.95 n must not be rounded across a rank."""
    wanted, below = 19 * sum(counts), 0
    for count, low_s, high_s in zip(counts, edges_s, edges_s[1:], strict=False):
        if 20 * (below + count) >= wanted:
            return low_s + (high_s - low_s) * (wanted - 20 * below) / (20 * count)
        below += count
    return edges_s[-1]
