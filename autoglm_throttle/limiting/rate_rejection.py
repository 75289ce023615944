"""Rejections by a priority rate or by a control state that admits no request."""

from __future__ import annotations

import math
from typing import Final, Protocol

from autoglm_throttle.types import ControlCause, ControlState, Decision, Reason


class HasTokens(Protocol):
    """Tokens that refill at a rate."""

    name: str
    nominal: float
    """Tokens per second at factor 1."""
    rate: float
    """Tokens per second now."""
    burst: float
    """Most tokens that it holds."""

    def tokens(self, now: float) -> float:
        """Return the tokens it holds at ``now``."""
        ...


def rate_rejection(bucket: HasTokens, cost: float, wait: float, now: float) -> Decision:
    """Build a rejection: ``gpu`` if the bucket is below its nominal rate, else ``rate`` for the class."""
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


REJECT_ALL_DETAIL: Final = {
    ControlCause.LOST: "gpu:lost",
    ControlCause.STALLED: "gpu:stalled",
    ControlCause.STALE: "gpu:stale",
    ControlCause.BLIND: "gpu:blind",
}
"""Details of a closed service for causes other than the table: ``gpu:overload`` means load."""


def all_rejected(control_state: ControlState, now: float) -> Decision:
    """Build the rejection of every request while no bucket is refilled."""
    wait = control_state.may_rise_at_s - now
    return Decision(
        allowed=False,
        reason=Reason.GPU,
        detail=REJECT_ALL_DETAIL.get(control_state.cause, "gpu:overload"),
        policy="gpu",
        limit=0.0,
        remaining=0.0,
        retry_after_s=wait,
        reset_after_s=wait,
    )
