"""Decisions of the limits: rejections by rates and user limits, and waits that end at an exact instant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from autoglm_throttle.types import ControlCause, ControlState, Decision, LimitStatus, Reason, UserLimit

# A user limit after a charge: its units left, and the seconds until the oldest unit that it counts leaves.
Usage: TypeAlias = tuple[UserLimit, int, float]

# Those of an admitted request, the fullest limit first; empty: no user limit applies. A `Decision` says the
# same, takes five times as long to build, and is built when somebody asks for it.
Usages: TypeAlias = tuple[Usage, ...]


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


def decide(verdicts: Sequence[Usage | Decision], units: int) -> Usages | Decision:
    """Select the rejection with the longest wait, which carries the other limits, or return all usages.

    A usage has counted ``units`` as spent, also beside a rejection.
    """
    usages = tuple([one for one in verdicts if not isinstance(one, Decision)])
    rejected = [one for one in verdicts if isinstance(one, Decision)]
    if not rejected:
        return fullest_first(usages)
    chosen = max(rejected, key=attrgetter("retry_after_s"))
    others = (
        status(one, units) if not isinstance(one, Decision) else one.limits[0]
        for one in verdicts
        if one is not chosen
    )
    chosen.others = tuple(others)
    return chosen


def fullest_first(usages: Usages) -> Usages:
    """Return the usages with the one that has the least share left in front; the others keep their order."""
    if len(usages) == 2:  # the usual case, in a third of the time
        first, second = usages
        return usages if first[1] * second[0].limit <= second[1] * first[0].limit else (second, first)
    if len(usages) < 2:
        return usages
    fullest = min(usages, key=lambda usage: usage[1] / usage[0].limit)
    return (fullest, *[usage for usage in usages if usage is not fullest])


def status(usage: Usage, refunded: int = 0) -> LimitStatus:
    """Return the public form of a usage, with ``refunded`` units more."""
    limit, remaining, reset_s = usage
    return LimitStatus(limit.name, limit.limit, limit.window_s, remaining + refunded, reset_s)


def decision_of(verdict: Usages | Decision) -> Decision:
    """Return the public form of a verdict."""
    if isinstance(verdict, Decision):
        return verdict
    if not verdict:
        return Decision(True, OK)
    limit, remaining, reset_s = verdict[0]
    others = tuple(map(status, verdict[1:]))
    return Decision(True, OK, "", limit.name, limit.limit, remaining, 0.0, reset_s, limit.window_s, others)


def latest(verdict: Usages | Decision, seconds: float) -> Usages | Decision:
    """Shift the resets of a verdict by ``seconds`` that have passed since."""
    if isinstance(verdict, tuple):
        return tuple([(limit, left, max(0.0, reset_s - seconds)) for limit, left, reset_s in verdict])
    if verdict.window_s:
        verdict.reset_after_s = max(0.0, verdict.reset_after_s - seconds)
        for other in verdict.others:
            other.reset_s = max(0.0, other.reset_s - seconds)
    return verdict


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
