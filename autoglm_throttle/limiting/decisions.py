"""Decisions of the limits: rejections by rates and user limits, and waits that end at an exact instant."""

from __future__ import annotations

import math
from typing import Final, Protocol

from autoglm_throttle.types import ControlCause, ControlState, Decision, Reason, UserLimit


def seconds_until(instant: float, now: float) -> float:
    """Return the seconds after ``now`` until the clock shows ``instant``; 0 if it does already."""
    if instant <= now:
        return 0.0
    wait = instant - now
    # The difference of two floats may be rounded down: a retry at that time would be rejected again.
    while now + wait < instant:
        wait = math.nextafter(wait, math.inf)
    return wait


# Module constants: before Python 3.12, reading an enum member costs as much as a dictionary lookup.
OK, USER, TOO_LARGE = Reason.OK, Reason.USER, Reason.TOO_LARGE


def rejection(limit: UserLimit, used: int, reset_s: float, wait_s: float) -> Decision:
    """Build the rejection for an exhausted limit.

    Args:
        limit: the exhausted limit.
        used: units that it counts now.
        reset_s: seconds until the oldest of them leaves; 0 if it counts no unit.
        wait_s: seconds until the request fits; infinite if it exceeds the whole limit.
    """
    name, most, window_s = limit.name, limit.limit, limit.window_s
    remaining = most - used if used < most else 0
    if wait_s == math.inf:
        return Decision(
            False, TOO_LARGE, f"too_large:{name}", name, most, remaining, wait_s, reset_s, window_s
        )
    return Decision(False, USER, f"user:{name}", name, most, remaining, wait_s, reset_s, window_s)


def deciding_limit(decisions: list[Decision], units: int) -> Decision:
    """Select the rejection with the longest wait, or the admission with the least remaining share.

    Args:
        decisions: one for each limit, each as though all of them allowed; the result carries the others.
        units: units that each admission has counted as spent already.
    """
    if len(decisions) == 1:
        return decisions[0]
    rejected = [decision for decision in decisions if not decision.allowed]
    if not rejected:
        return _of_all(min(decisions, key=_remaining_share), decisions)
    for decision in decisions:
        if decision.allowed:
            decision.remaining += units
    return _of_all(max(rejected, key=_retry_after), decisions)


def _of_all(chosen: Decision, decisions: list[Decision]) -> Decision:
    chosen.others = tuple(
        state for decision in decisions if decision is not chosen for state in decision.limits
    )
    return chosen


def _remaining_share(decision: Decision) -> float:
    return decision.remaining / decision.limit


def _retry_after(decision: Decision) -> float:
    return decision.retry_after_s


def latest(decision: Decision, seconds: float) -> Decision:
    """Shift a user limit's decision by ``seconds`` that have passed since."""
    if decision.window_s:
        decision.reset_after_s = max(0.0, decision.reset_after_s - seconds)
        for other in decision.others:
            other.reset_s = max(0.0, other.reset_s - seconds)
    return decision


class HasTokens(Protocol):
    """Tokens that refill at a rate."""

    name: str
    nominal: float  # Tokens per second at factor 1
    rate: float  # Tokens per second now
    burst: float  # Most tokens that it holds

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


# Details of a closed service for causes other than the table: ``gpu:overload`` means load.
REJECT_ALL_DETAIL: Final = {
    ControlCause.LOST: "gpu:lost",
    ControlCause.STALLED: "gpu:stalled",
    ControlCause.STALE: "gpu:stale",
    ControlCause.BLIND: "gpu:blind",
}


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
