"""What a single limit says, and which limit speaks for all of them."""

from __future__ import annotations

import math

from autoglm_throttle.model import Decision, Reason, UserLimit

OK, USER, TOO_LARGE = Reason.OK, Reason.USER, Reason.TOO_LARGE
"""Before Python 3.12 reading a member from its class costs as much as a look into a dictionary."""


def refusal(limit: UserLimit, used: int, reset_s: float, wait_s: float) -> Decision:
    """The word of a limit that has no room.

    Args:
        limit: which one.
        used: units that it counts now.
        reset_s: seconds until the oldest of them leaves; 0 if it counts none.
        wait_s: seconds until there is room; infinite if there never is, since more was asked than it holds.
    """
    name, most, window_s = limit.name, limit.limit, limit.window_s
    left = most - used if used < most else 0
    if wait_s == math.inf:
        return Decision(False, TOO_LARGE, f"too_large:{name}", name, most, left, wait_s, reset_s, window_s)
    return Decision(False, USER, f"user:{name}", name, most, left, wait_s, reset_s, window_s)


def deciding(verdicts: list[Decision], units: int) -> Decision:
    """Of several limits, the refusal with the longest wait or the admission with the least room.

    Args:
        verdicts: one for each limit, each as though all of them allowed; the chosen one is given the others.
        units: what each that allows has counted as spent already.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    refused = [verdict for verdict in verdicts if not verdict.allowed]
    if not refused:
        return _of_all(min(verdicts, key=_fullness), verdicts)
    for verdict in verdicts:
        if verdict.allowed:
            verdict.remaining += units
    return _of_all(max(refused, key=_patience), verdicts)


def _of_all(chosen: Decision, verdicts: list[Decision]) -> Decision:
    chosen.others = tuple(state for verdict in verdicts if verdict is not chosen for state in verdict.items)
    return chosen


def _fullness(verdict: Decision) -> float:
    return verdict.remaining / verdict.limit


def _patience(verdict: Decision) -> float:
    return verdict.retry_after_s


def later(decision: Decision, seconds: float) -> Decision:
    """What a user window said, as of so many seconds later."""
    if decision.window_s:
        decision.reset_after_s = max(0.0, decision.reset_after_s - seconds)
        for other in decision.others:
            other.reset_s = max(0.0, other.reset_s - seconds)
    return decision
