"""Decisions of the limits: rejections by rates and user limits, and waits that end at an exact instant."""

from __future__ import annotations

import math
from operator import attrgetter
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
    """Build the rejection for an exhausted limit, which counts ``used`` units.

    The oldest of them leaves in ``reset_s``. The wait is infinite if the request exceeds the whole limit.
    """
    name, most, window_s = limit.name, limit.limit, limit.window_s
    remaining = most - used if used < most else 0
    reason, detail = (TOO_LARGE, f"too_large:{name}") if wait_s == math.inf else (USER, f"user:{name}")
    return Decision(False, reason, detail, name, most, remaining, wait_s, reset_s, window_s)


def deciding_limit(decisions: list[Decision], units: int) -> Decision:
    """Select the rejection with the longest wait, or the admission with the least remaining share.

    The result carries the others. An admission has counted ``units`` as spent, also beside a rejection.
    """
    if len(decisions) == 1:
        return decisions[0]
    rejected = [decision for decision in decisions if not decision.allowed]
    if rejected:
        chosen = max(rejected, key=attrgetter("retry_after_s"))
        for decision in decisions:
            if decision.allowed:
                decision.remaining += units
    else:
        chosen = min(decisions, key=lambda decision: decision.remaining / decision.limit)
    chosen.others = tuple(
        state for decision in decisions if decision is not chosen for state in decision.limits
    )
    return chosen


def latest(decision: Decision, seconds: float) -> Decision:
    """Shift a user limit's decision by ``seconds`` that have passed since."""
    if decision.window_s:
        decision.reset_after_s = max(0.0, decision.reset_after_s - seconds)
        for other in decision.others:
            other.reset_s = max(0.0, other.reset_s - seconds)
    return decision


class HasTokens(Protocol):
    """Tokens that refill at a rate, of which a request pays its cost."""

    name: str
    nominal: float  # Tokens per second at factor 1
    rate: float  # Tokens per second now
    burst: float  # Most tokens that it holds

    def tokens(self, now: float) -> float:
        """Return the tokens it holds at ``now``."""
        ...

    def give_back(self, cost: float, now: float) -> None:
        """Return unused tokens."""
        ...


def rate_rejection(bucket: HasTokens, cost: float, wait: float, now: float) -> Decision:
    """Build a rejection: ``gpu`` if the bucket is below its nominal rate, else ``rate`` for the class."""
    if cost > bucket.burst and math.isinf(wait):
        reason, detail, policy = Reason.TOO_LARGE, "too_large:rate", bucket.name
    elif bucket.rate < bucket.nominal:
        reason, detail, policy = Reason.GPU, "gpu:ceiling", "gpu"
    else:
        reason, detail, policy = Reason.RATE, f"rate:{bucket.name}", bucket.name
    return Decision(False, reason, detail, policy, bucket.burst, bucket.tokens(now), wait, wait)


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
    detail = REJECT_ALL_DETAIL.get(control_state.cause, "gpu:overload")
    return Decision(False, Reason.GPU, detail, "gpu", 0.0, 0.0, wait, wait)
