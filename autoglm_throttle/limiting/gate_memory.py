"""How many requests in flight the memory of the devices allows."""

from __future__ import annotations

import math

BLIND_MARGIN = 0.05
"""An idle fill this close to the target belongs to an engine that takes its memory in advance."""

LEAST_RISE = 0.02
"""A rise of the fill above the idle one from which the share of one request can be told."""

TELLING_SHARE = 0.25
"""Of the present cap: with fewer requests inside, what others have left behind counts for more than they do.
An allocator that keeps what it once took would make a few requests look as dear as many."""


class MemoryCap:
    """Learns what one request adds to the fill of the fullest device.

    Args:
        target: fill that is aimed at, in (0, 1].
    """

    __slots__ = ("_idle", "_inside", "_ratio", "_target", "blind", "requests")

    def __init__(self, target: float) -> None:
        self._target = target
        self._idle = math.inf
        self._ratio, self._inside = 0.0, 0
        self.requests: float = math.inf
        """Requests in flight at which the target would be reached, >= 1; infinite: nothing learnt."""
        self.blind: bool = False
        """The idle fill is so near to the target that the fill tells nothing about requests."""

    def learn(self, ratio: float, in_flight: int, *, untouched: bool) -> None:
        """Take in a fill, 0..1, of the fullest device.

        Args:
            ratio: the fill.
            in_flight: requests inside at that time.
            untouched: no request has ever been inside, so the fill is the idle one, whichever way it moved:
                a model that is still being loaded is not the work of requests.
        """
        self._idle = ratio if untouched else min(self._idle, ratio)
        self.blind = self._idle >= self._target - BLIND_MARGIN
        if self.blind:
            self.requests = math.inf
            return
        known = self.requests
        if in_flight >= (1.0 if math.isinf(known) else TELLING_SHARE * known) and ratio - self._idle > LEAST_RISE:
            self._ratio, self._inside = ratio, in_flight
        rise = self._ratio - self._idle
        if rise > LEAST_RISE:  # of an earlier fill, where the idle one has turned out to be lower
            self.requests = max(1.0, (self._target - self._idle) * self._inside / rise)
