"""How many requests in flight the memory of the devices allows."""

from __future__ import annotations

import math

BLIND_MARGIN = 0.05
"""An idle fill this close to the target belongs to an engine that takes its memory in advance."""

LEAST_RISE = 0.02
"""A rise of the fill above the idle one from which the share of one request can be told."""

LEAST_IN_FLIGHT = 4
"""With fewer requests the rise is mostly something else."""


class MemoryCap:
    """Learns what one request adds to the fill of the fullest device.

    Args:
        target: fill that is aimed at, in (0, 1].
    """

    __slots__ = ("_idle", "_target", "blind", "requests")

    def __init__(self, target: float) -> None:
        self._target = target
        self._idle = math.inf
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
        rise = ratio - self._idle
        if in_flight >= LEAST_IN_FLIGHT and rise > LEAST_RISE:
            self.requests = max(1.0, (self._target - self._idle) * in_flight / rise)
