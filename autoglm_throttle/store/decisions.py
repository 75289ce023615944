"""Converts a store's answer to decisions, the same as those of the windows in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from autoglm_throttle.store.user_limit_store import VALUES, Answer, StoreCharge
from autoglm_throttle.types import Decision, Reason, UserLimit

_OK, _USER, _TOO_LARGE = Reason.OK, Reason.USER, Reason.TOO_LARGE
"""Module constants: before Python 3.12, reading an enum member costs as much as a dictionary lookup."""

US: Final = 1e-6
"""Seconds in a microsecond."""


def caller_decision(charge: StoreCharge, answer: Answer) -> Decision:
    """Return one caller's decision: the rejection with the longest wait, else the fullest limit."""
    limits = charge.limits
    if len(limits) == 1:
        return limit_decision(limits[0], answer[0], answer[1], answer[2], answer[3])
    decisions = [
        limit_decision(limit, *answer[VALUES * n : VALUES * n + 4]) for n, limit in enumerate(limits)
    ]
    rejected = [each for each in decisions if not each.allowed]
    chosen = max(rejected, key=_retry_after) if rejected else min(decisions, key=_remaining_share)
    chosen.others = tuple(each.limits[0] for each in decisions if each is not chosen)
    return chosen


def limit_decision(limit: UserLimit, ok: int, remaining: int, retry_us: int, reset_us: int) -> Decision:
    """Return one limit's decision, from the first four of its `VALUES` in an answer."""
    name, most, window_s, reset_s = limit.name, limit.limit, limit.window_s, reset_us * US
    if ok:
        return Decision(True, _OK, "", name, most, remaining, 0.0, reset_s, window_s)
    if retry_us < 0:
        return Decision(
            False, _TOO_LARGE, f"too_large:{name}", name, most, remaining, math.inf, reset_s, window_s
        )
    return Decision(False, _USER, f"user:{name}", name, most, remaining, retry_us * US, reset_s, window_s)


def combined(user: Decision, address: Decision) -> Decision:
    """Combine the decisions on a user and its address; of two rejections the longer one counts."""
    if not (user.allowed and address.allowed):
        return user if user.retry_after_s >= address.retry_after_s else address
    user.others += address.limits
    return user


def remaining_units(limits: Sequence[UserLimit], decision: Decision) -> tuple[int, ...]:
    """Return the remaining units of each limit, in their order, from a decision on one caller."""
    if len(limits) == 1:
        return (int(decision.remaining),)
    by_window = {state.window_s: state.remaining for state in decision.limits}
    return tuple(by_window[limit.window_s] for limit in limits)


def _remaining_share(decision: Decision) -> float:
    return decision.remaining / decision.limit


def _retry_after(decision: Decision) -> float:
    return decision.retry_after_s
