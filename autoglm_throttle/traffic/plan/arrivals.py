"""Arrival processes, and the mix of priorities, clients and kinds of requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.shapes import parse_number
from autoglm_throttle.types import Priority

# Bounds of ``k``: squared variation of the gaps from 100, isolated bursts, to 0.0001, nearly uniform.
MIN_K, MAX_K = 0.01, 10_000.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process: the gaps have a Gamma distribution with mean 1 and squared variation 1/k.

    Other tools call ``k`` burstiness: below 1 requests come in bursts, above 1 more evenly.

    Raises:
        TrafficError: ``k`` is neither infinite nor 0.01..10 000.
    """

    k: float  # 1: Poisson; infinite: uniform

    UNIFORM: ClassVar[Arrivals]  # Equal gaps; the first request at 0
    POISSON: ClassVar[Arrivals]  # Independent callers

    def __post_init__(self) -> None:
        if not (MIN_K <= self.k <= MAX_K or self.k == math.inf):
            raise TrafficError(f"gamma: K must be {MIN_K:g}..{MAX_K:g}, not {self.k!r}")

    @classmethod
    def gamma(cls, k: float) -> Arrivals:
        """Create a process with Gamma-distributed gaps; ``gamma(1)`` is Poisson."""
        return cls(k)

    @classmethod
    def parse(cls, text: str) -> Arrivals:
        """Read ``uniform``, ``poisson`` or ``gamma:K``; raise TrafficError for another text."""
        named = {"uniform": cls.UNIFORM, "poisson": cls.POISSON}
        kind, colon, k = text.strip().partition(":")
        if kind == "gamma" and colon:
            return cls(parse_number(k))
        if text.strip() not in named:
            raise TrafficError(f"unknown arrivals {text!r}: expected uniform, poisson or gamma:K")
        return named[text.strip()]

    def masses(self, total: float, stream: Random) -> Iterator[float]:
        """Yield the running sums of the gaps below ``total``, in operational time with the mean rate 1."""
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

# Percent of all requests: important requests are few, unimportant ones many; our decision.
MIX = {Priority.HIGH: 10.0, Priority.MID: 30.0, Priority.LOW: 60.0}


def parse_mix(text: str) -> dict[Priority, float]:
    """Read ``high=10,mid=30,low=60``; priorities left out get nothing. A wrong text raises TrafficError."""
    mix: dict[Priority, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            mix[Priority[name.strip().upper()]] = parse_number(share)
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    PriorityMix(mix)  # checks the shares
    return mix


@dataclass(frozen=True, slots=True)
class PriorityMix:
    """Shares of priorities, clients and kinds from which requests are drawn.

    Raises:
        TrafficError: a mix that does not add up, no client, a negative or infinite skew, or kinds with shares
            that are not finite numbers above 0.
    """

    mix: Mapping[Priority, float] = field(default_factory=MIX.copy)  # Percent by priority
    clients: int = 1  # Distinct callers, 1..65 536
    # Zipf exponent: 0 gives all clients the same share, 1 gives client n the n-th part of the first's.
    skew: float = 0.0
    # Shares of the request kinds of the load, in their order; only their proportions matter.
    kinds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        shares = self.mix.values()
        if not all(0.0 <= share <= 100.0 for share in shares) or not math.isclose(sum(shares), 100.0):
            raise TrafficError("the shares of a mix must be 0..100 and add up to 100 percent")
        if not 1 <= self.clients <= 65_536:
            raise TrafficError(f"clients must be 1..65536, not {self.clients}")
        if not 0.0 <= self.skew < math.inf:
            raise TrafficError(f"skew must be a finite number of at least 0, not {self.skew!r}")
        if not all(share > 0.0 for share in self.kinds) or not 0.0 < sum(self.kinds) < math.inf:
            raise TrafficError(f"the shares of kinds must be finite numbers above 0, not {self.kinds!r}")

    @property
    def client_weights(self) -> list[float]:
        """Weights of the clients, by their number."""
        return [(rank + 1.0) ** -self.skew for rank in range(self.clients)]
