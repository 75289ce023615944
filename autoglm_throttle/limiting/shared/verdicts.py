"""Converts a store's answer to decisions, the same as those of the windows in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from autoglm_throttle.limiting.shared.store import VALUES, Answer, Charge
from autoglm_throttle.model import Decision, Reason, UserLimit

_OK, _USER, _TOO_LARGE = Reason.OK, Reason.USER, Reason.TOO_LARGE
"""Module constants: before Python 3.12, reading an enum member costs as much as a dictionary lookup."""

US: Final = 1e-6
"""Seconds in a microsecond."""


def decision(charge: Charge, answer: Answer) -> Decision:
    """Return one caller's decision: the rejection with the longest wait, else the fullest limit."""
    limits = charge.limits
    if len(limits) == 1:
        return verdict(limits[0], answer[0], answer[1], answer[2], answer[3])
    words = [verdict(limit, *answer[VALUES * n : VALUES * n + 4]) for n, limit in enumerate(limits)]
    refused = [word for word in words if not word.allowed]
    chosen = max(refused, key=_patience) if refused else min(words, key=_fullness)
    chosen.others = tuple(word.items[0] for word in words if word is not chosen)
    return chosen


def verdict(limit: UserLimit, ok: int, left: int, retry_us: int, reset_us: int) -> Decision:
    """Return one limit's decision, from the first four of its `VALUES` in an answer."""
    name, most, window_s, reset_s = limit.name, limit.limit, limit.window_s, reset_us * US
    if ok:
        return Decision(True, _OK, "", name, most, left, 0.0, reset_s, window_s)
    if retry_us < 0:
        return Decision(False, _TOO_LARGE, f"too_large:{name}", name, most, left, math.inf, reset_s, window_s)
    return Decision(False, _USER, f"user:{name}", name, most, left, retry_us * US, reset_s, window_s)


def together(user: Decision, address: Decision) -> Decision:
    """Combine the decisions on a user and its address; of two rejections the longer one counts."""
    if not (user.allowed and address.allowed):
        return user if user.retry_after_s >= address.retry_after_s else address
    user.others += address.items
    return user


def left(limits: Sequence[UserLimit], decision: Decision) -> tuple[int, ...]:
    """Return the remaining units of each limit, in their order, from a decision on one caller."""
    if len(limits) == 1:
        return (int(decision.remaining),)
    by_window = {state.window_s: state.remaining for state in decision.items}
    return tuple(by_window[limit.window_s] for limit in limits)


def _fullness(word: Decision) -> float:
    return word.remaining / word.limit


def _patience(word: Decision) -> float:
    return word.retry_after_s
