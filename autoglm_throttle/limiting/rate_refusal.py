"""What somebody is told whom a rate, or a shut door, has refused: the same words wherever tokens are."""

from __future__ import annotations

import math
from typing import Final, Protocol

from autoglm_throttle.model import Decision, Reason, Regime, Why


class Rated(Protocol):
    """Tokens that refill at a rate."""

    name: str
    nominal: float
    """Tokens per second without any cut."""
    rate: float
    """Tokens per second now."""
    burst: float
    """The most that it holds."""

    def tokens(self, now: float) -> float:
        """Tokens it holds at ``now``."""
        ...


def rate_refusal(bucket: Rated, cost: float, wait: float, now: float) -> Decision:
    """Below its nominal rate a bucket refuses for our load; at it, because the class asks for too much."""
    if cost > bucket.burst and math.isinf(wait):
        reason, detail, policy = Reason.TOO_LARGE, "too_large:rate", bucket.name
    elif bucket.rate < bucket.nominal:
        reason, detail, policy = Reason.GPU, "gpu:ceiling", "gpu"
    else:
        reason, detail, policy = Reason.RATE, f"rate:{bucket.name}", bucket.name
    return Decision(
        allowed=False,
        reason=reason,
        detail=detail,
        policy=policy,
        limit=bucket.burst,
        remaining=bucket.tokens(now),
        retry_after_s=wait,
        reset_after_s=wait,
    )


SHUT: Final = {
    Why.LOST: "gpu:lost",
    Why.STALLED: "gpu:stalled",
    Why.STALE: "gpu:stale",
    Why.BLIND: "gpu:blind",
}
"""What shuts the door, where it is not the table: who reads ``gpu:stop`` looks for load."""


def door_shut(regime: Regime, now: float) -> Decision:
    """What everybody is told while nothing is refilled."""
    wait = regime.reopens_s - now
    return Decision(
        allowed=False,
        reason=Reason.GPU,
        detail=SHUT.get(regime.why, "gpu:stop"),
        policy="gpu",
        limit=0.0,
        remaining=0.0,
        retry_after_s=wait,
        reset_after_s=wait,
    )
