"""The mix of priorities, clients and kinds of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan.parsing import parse_number
from autoglm_throttle.types import Priority

MIX = {Priority.HIGH: 10.0, Priority.MID: 30.0, Priority.LOW: 60.0}
"""Percent of all requests: important requests are few, unimportant ones many; our decision."""


def parse_mix(text: str) -> dict[Priority, float]:
    """Read ``high=10,mid=30,low=60``; priorities left out get nothing.

    Raises:
        TrafficError: an unknown priority, or shares that do not add up to 100 %.
    """
    mix: dict[Priority, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            mix[Priority[name.strip().upper()]] = parse_number(share)
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    _check_mix(mix)
    return mix


def _check_mix(mix: Mapping[Priority, float]) -> None:
    if any(not 0.0 <= share <= 100.0 for share in mix.values()) or not math.isclose(sum(mix.values()), 100.0):
        raise TrafficError("the shares of a mix must be 0..100 and add up to 100 percent")


@dataclass(frozen=True, slots=True)
class PriorityMix:
    """Shares of priorities, clients and kinds from which requests are drawn.

    Raises:
        TrafficError: a mix that does not add up, no client, a negative or infinite skew, or kinds with shares
            that are not finite numbers above 0.
    """

    mix: Mapping[Priority, float] = field(default_factory=MIX.copy)
    """Percent by priority."""
    clients: int = 1
    """Distinct callers, 1..65 536."""
    skew: float = 0.0
    """Zipf exponent: 0 gives all clients the same share, 1 gives client n the n-th part of the first's."""
    kinds: tuple[float, ...] = (1.0,)
    """Shares of the request kinds of the load, in their order; only their proportions matter."""

    def __post_init__(self) -> None:
        _check_mix(self.mix)
        if not 1 <= self.clients <= 65_536:
            raise TrafficError(f"clients must be 1..65536, not {self.clients}")
        if not 0.0 <= self.skew < math.inf:
            raise TrafficError(f"skew must be a finite number of at least 0, not {self.skew!r}")
        if not all(share > 0.0 for share in self.kinds) or not 0.0 < sum(self.kinds) < math.inf:
            raise TrafficError(f"the shares of kinds must be finite numbers above 0, not {self.kinds!r}")
