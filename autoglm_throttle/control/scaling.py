"""The number to scale by: the load that more replicas would lower, averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

# Terms of the pressure that a further replica lowers. A latency or the activity of a card may stay as it is.
SCALING_TERMS: Final = ("demand", "queue", "kv", "memory")
MEAN_S: Final = (
    60.0  # Time constant of the mean: an autoscaler decides every 15 s, a replica starts in minutes
)


class ReplicasRatio:
    """Averages each term exponentially; the largest mean is the ratio of wanted to present replicas."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._at_s = -math.inf

    def update(self, terms: Mapping[str, float], now: float) -> float | None:
        """Add the terms that are known now, and return the ratio; None: no term is known.

        A term that is no longer known leaves the mean; one that appears begins with its value.
        """
        weight = -math.expm1(-max(0.0, now - self._at_s) / MEAN_S)
        self._at_s = max(now, self._at_s)
        found = {name: terms[name] for name in SCALING_TERMS if math.isfinite(terms.get(name, math.nan))}
        means = ((name, self._means.get(name, value), value) for name, value in found.items())
        self._means = {name: mean + weight * (value - mean) for name, mean, value in means}
        return max(self._means.values(), default=None)
