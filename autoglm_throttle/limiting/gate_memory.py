"""How many requests in flight the memory of the devices allows."""

from __future__ import annotations

import math

BLIND_MARGIN = 0.05
"""An idle fill this close to the target belongs to an engine that takes its memory in advance."""

LEAST_RISE = 0.02
"""A difference between two fills from which the requests can be told that made it."""

CLEAR_RISE = 4 * LEAST_RISE
"""Of such a rise a half is clearly missed when half of the requests have gone."""

TELLING_SHARE = 0.25
"""Of the most that were ever inside: with fewer, what others have left counts for more than they do."""

TELLING = 4
"""Until so many were inside at once a cap is no lower than twice the most: the first may have loaded a model,
and a cap that lets in no more than there were could never be found wrong."""


class MemoryCap:
    """Learns what one request adds to the fill of the fullest device.

    Where the fill falls when requests go, it is laid to those who are inside. An allocator that keeps what it
    once took, as that of PyTorch does, would make a few requests look as dear as many. There the highest fill
    is laid to the most who were inside. Until a fill has fallen it is taken for kept.

    Args:
        target: fill that is aimed at, in (0, 1].
    """

    __slots__ = (
        "_ever",
        "_idle",
        "_inside",
        "_most",
        "_ratio",
        "_target",
        "_then",
        "blind",
        "keeps",
        "requests",
    )

    def __init__(self, target: float) -> None:
        self._target = target
        self._idle = math.inf
        self._ratio, self._inside = 0.0, 0  # the fill that was believed last, and to whom it was laid
        self._then = 0  # who was surely inside then, where it was laid to more
        self._most = self._ever = 0  # inside since the fill was found to stay, and ever
        self.requests: float = math.inf
        """Requests in flight at which the target would be reached, >= 1; infinite: nothing learnt."""
        self.blind: bool = False
        """The idle fill is so near to the target that the fill tells nothing about requests."""
        self.keeps: bool = True
        """The fill stays when requests go."""

    def learn(self, ratio: float, in_flight: int, peak: int, *, untouched: bool) -> None:
        """Take in a fill, 0..1, of the fullest device.

        Args:
            ratio: the fill.
            in_flight: requests inside at that time.
            peak: the most inside since the fill before, >= in_flight.
            untouched: no request has ever been inside, so the fill is the idle one, whichever way it moved:
                a model that is still being loaded is not the work of requests.
        """
        self._idle = ratio if untouched else min(self._idle, ratio)
        self.blind = self._idle >= self._target - BLIND_MARGIN
        if self.blind:
            self.requests = math.inf
            return
        self._compare(ratio, in_flight, peak)
        if ratio - self._idle > LEAST_RISE:
            if self.keeps:
                self._keep(ratio, in_flight)
            elif self._tells(ratio, in_flight):
                self._ratio, self._inside = ratio, in_flight
        rise = self._ratio - self._idle  # of an earlier fill, where the idle one has turned out to be lower
        if not self._inside:
            self.requests = math.inf
        elif rise > LEAST_RISE:
            least = 1.0 if self._ever >= TELLING else min(2.0 * self._ever, TELLING)
            self.requests = max(least, (self._target - self._idle) * self._inside / rise)

    def _compare(self, ratio: float, in_flight: int, peak: int) -> None:
        """Whether the fill follows the requests, by the one that was believed last."""
        self._most, self._ever = max(self._most, peak), max(self._ever, peak)
        if ratio < self._ratio - LEAST_RISE:
            if self.keeps:
                self._inside = self._then
            self.keeps = False
        elif not self.keeps and in_flight <= self._inside / 2 and self._ratio - self._idle > CLEAR_RISE:
            self.keeps, self._then, self._most = True, self._inside, in_flight

    def _keep(self, ratio: float, in_flight: int) -> None:
        """Take in a fill that may have been made by any who were inside since it last fell."""
        if ratio > self._ratio:
            self._ratio, self._then = ratio, in_flight
        self._then = max(self._then, in_flight)
        self._inside = max(self._inside, self._most)

    def _tells(self, ratio: float, in_flight: int) -> bool:
        """Whether a fill that follows the requests says something new of them."""
        if in_flight < (TELLING_SHARE * self._ever if self._inside else 1):
            return False
        return in_flight >= self._inside or abs(ratio - self._ratio) > LEAST_RISE
