"""Counts the requests in flight and their stated memory, and the rates at which requests end."""

from __future__ import annotations

import math
from typing import NamedTuple

from autoglm_throttle.types import Demand

RATE_GAIN = 0.2
"""Weight of the newest pair of samples in a rate; chosen, as for the learned rates of the limiter."""


class MemoryLoad:
    """Requests in flight now: the counts from which a fill is projected to the next sample."""

    __slots__ = ("cost", "ended", "had_requests", "in_flight", "peak", "released", "stated_bytes")

    def __init__(self) -> None:
        self.in_flight: int = 0
        """Requests in flight."""
        self.cost: float = 0.0
        """Cost of the requests in flight that did not state their memory."""
        self.stated_bytes: int = 0
        """Bytes that the other requests stated."""
        self.peak: int = 0
        """Maximum of requests in flight since the last sample."""
        self.released: float = 0.0
        """Cost of the ended requests without stated memory, since the start."""
        self.ended: int = 0
        """Ended requests, since the start."""
        self.had_requests: bool = False
        """Whether any request was ever in flight."""

    def add(self, demand: Demand) -> None:
        """Count a request that begins."""
        self.had_requests = True
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        if demand.memory_bytes is None:
            self.cost += demand.cost
        else:
            self.stated_bytes += demand.memory_bytes

    def remove(self, demand: Demand) -> None:
        """Count a request that has ended, and was added before."""
        self.in_flight -= 1
        self.ended += 1
        if demand.memory_bytes is None:
            self.cost = max(0.0, self.cost - demand.cost)
            self.released += demand.cost
        else:
            self.stated_bytes -= demand.memory_bytes
        if not self.in_flight:
            self.cost = 0.0  # what adding and taking away of fractions has left


class LoadAtSample(NamedTuple):
    """Figures of a `MemoryLoad` at the last sample."""

    taken_s: float = -math.inf
    """Time of the sample."""
    cost: float = 0.0
    stated_bytes: int = 0
    released: float = 0.0
    ended: int = 0


class EndRates:
    """Rates at which requests end, smoothed over the samples."""

    __slots__ = ("cost", "requests")

    def __init__(self) -> None:
        self.cost: float | None = None
        """Cost that ends per second; None: not known yet."""
        self.requests: float | None = None
        """Requests that end per second; None: not known yet."""

    def learn(self, before: LoadAtSample, load: MemoryLoad, passed_s: float) -> None:
        """Add the requests that ended since the last sample."""
        self.cost = _smoothed(self.cost, (load.released - before.released) / passed_s)
        self.requests = _smoothed(self.requests, (load.ended - before.ended) / passed_s)


def _smoothed(old: float | None, new: float) -> float:
    """Move a rate towards a newer one; negative rates (counts that began anew) count as 0."""
    new = max(0.0, new)
    return new if old is None else old + RATE_GAIN * (new - old)
