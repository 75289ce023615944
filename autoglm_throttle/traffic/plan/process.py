"""Arrival processes: the gaps between requests at a constant rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.parsing import parse_number

MIN_K, MAX_K = 0.01, 10_000.0
"""Bounds of ``k``: squared variation of the gaps from 100, isolated bursts, to 0.0001, nearly uniform."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: gaps of the Gamma distribution with mean 1 and squared variation 1/k.

    Other tools call ``k`` burstiness: below 1 requests come in bursts, above 1 more evenly.

    Raises:
        TrafficError: ``k`` is neither infinite nor 0.01..10 000.
    """

    k: float
    """1: Poisson; infinite: uniform."""

    UNIFORM: ClassVar[Arrivals]
    """Equal gaps; the first request at 0."""
    POISSON: ClassVar[Arrivals]
    """Independent callers."""

    def __post_init__(self) -> None:
        if not (MIN_K <= self.k <= MAX_K or self.k == math.inf):
            raise TrafficError(f"gamma: K must be {MIN_K:g}..{MAX_K:g}, not {self.k!r}")

    @classmethod
    def gamma(cls, k: float) -> Arrivals:
        """Create a process with Gamma-distributed gaps; ``gamma(1)`` is Poisson.

        Raises:
            TrafficError: as for the class.
        """
        return cls(k)

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``uniform``, ``poisson`` or ``gamma:K``.

        Raises:
            TrafficError: the text is not one of these.
        """
        kind, colon, k = text.strip().partition(":")
        if kind == "gamma" and colon:
            return cls(parse_number(k))
        named = {"uniform": cls.UNIFORM, "poisson": cls.POISSON}
        if text.strip() not in named:
            raise TrafficError(f"unknown arrivals {text!r}: expected uniform, poisson or gamma:K")
        return named[text.strip()]

    def masses(self, total: float, stream: Random) -> Iterator[float]:
        """Yield the running sums of the gaps, in operational time, in which the mean rate is 1.

        Args:
            total: upper bound, exclusive.
            stream: source of the draws; uniform gaps need no draw.
        """
        if self == Arrivals.UNIFORM:
            # A product of two floats may end a hair above a whole number; that hair is no request.
            yield from map(float, range(math.ceil(total - 1e-9 * max(1.0, total))))
            return
        mass = stream.gammavariate(self.k, 1.0 / self.k)
        while mass < total:
            yield mass
            mass += stream.gammavariate(self.k, 1.0 / self.k)

    def __str__(self) -> str:
        if self == Arrivals.UNIFORM:
            return "uniform"
        return "poisson" if self == Arrivals.POISSON else f"gamma:{self.k!r}".removesuffix(".0")


Arrivals.UNIFORM = Arrivals(math.inf)
Arrivals.POISSON = Arrivals(1.0)
