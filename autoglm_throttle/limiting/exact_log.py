"""Limits of up to 1000 units, exactly: a log of the instants at which a user's units were spent.

In no window of W seconds are more than the limit's units admitted.
A unit spent at t has left a window of W at the instant t + W.
One log serves all exact limits of a user, since they are charged together, all or none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from autoglm_throttle.limiting.instant import until
from autoglm_throttle.limiting.verdict import OK, refusal
from autoglm_throttle.model import Decision, UserLimit

COMPACTED_SHARE = 4
"""A log drops its expired units once they are a quarter of it, so each unit is moved at most four times."""

CLAMPED_S = 1.0
"""A request that read the clock and was then kept from its decision for longer than this gets nothing back.
Threads wait for a lock for milliseconds; the longer this is, the likelier another unit is mistaken for it."""

Log = array
"""Instants at which units were spent, in rising order; one entry for each unit."""


class ExactLog:
    """The exact limits of a set; what it keeps of a user is a `Log`.

    Args:
        limits: with different windows; the longest decides how long a unit is kept.
    """

    def __init__(self, limits: Sequence[UserLimit]) -> None:
        self._limits = tuple(limits)
        self._horizon_s = max(limit.window_s for limit in limits)

    def open(self) -> Log[float]:
        """The log of somebody who has spent nothing."""
        return Log("d")

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Judge by other units from now on; the windows are the same."""
        self._limits = tuple(limits)

    def verdicts(self, log: Log[float], units: int, now: float) -> list[Decision]:
        """What each limit says on ``units``, with what would remain after them."""
        return [verdict(log, limit, units, now) for limit in self._limits]

    def verdicts_each(self, log: Log[float], units: Sequence[int], now: float) -> list[Decision]:
        """The same where each limit is asked for units of its own."""
        return [verdict(log, limit, each, now) for limit, each in zip(self._limits, units, strict=True)]

    def spend(self, log: Log[float], units: int, now: float) -> None:
        """Charge ``units``; a clock that went back reads as standing still."""
        if log:
            last = log[-1]
            if last > now:
                now = last
            if log[0] + self._horizon_s <= now:
                expired = first_live(log, self._horizon_s, now)
                if expired * COMPACTED_SHARE >= len(log):
                    del log[:expired]
        if units == 1:
            log.append(now)
        else:
            log.extend([now] * units)

    def take_out(self, log: Log[float], units: int, charged_at: float, now: float) -> bool:
        """Remove units charged at an instant, or at the later one at which the clock then stood still.

        Of the latter, at least one more unit must be there: the one that had made the clock stand.

        Returns:
            Whether they were there, all of them, and had not left the window by themselves.
        """
        if charged_at + self._horizon_s <= now:
            return False
        start = bisect_left(log, charged_at)
        if start == len(log):
            return False
        instant = log[start]
        end = bisect_right(log, instant, start)
        needed = units if instant == charged_at else units + 1
        if end - start < needed or instant - charged_at > CLAMPED_S:
            return False
        del log[end - units : end]
        return True

    def idle(self, log: Log[float], now: float) -> bool:
        """Whether no limit counts anything any more."""
        return not log or log[-1] + self._horizon_s <= now

    def left(self, log: Log[float], now: float) -> float:
        """The share that is left of the limit with the least: 1 for an idle user, 0 for an exhausted one."""
        return min(
            1.0 - (len(log) - first_live(log, limit.window_s, now)) / limit.limit for limit in self._limits
        )


def verdict(log: Log[float], limit: UserLimit, units: int, now: float) -> Decision:
    """What one limit says on ``units``, with what would remain after them."""
    window_s = limit.window_s
    live, used = 0, len(log)
    reset_s = log[0] + window_s - now if used else float(window_s)
    if reset_s <= 0.0:
        live = first_live(log, window_s, now)
        reset_s = log[live] + window_s - now if live < used else float(window_s)
    left = limit.limit - (used - live) - units
    if left >= 0:
        return Decision(True, OK, "", limit.name, limit.limit, left, 0.0, reset_s, window_s)
    wait = math.inf if units > limit.limit else until(log[live - left - 1] + window_s, now)
    return refusal(limit, used - live, reset_s if used > live else 0.0, wait)


def first_live(log: Log[float], window_s: int, now: float) -> int:
    """Index of the first unit that is still inside the window: of those before it, ``t + window <= now``."""
    live = bisect_right(log, now - window_s)
    while live < len(log) and log[live] + window_s <= now:
        live += 1
    while live and log[live - 1] + window_s > now:
        live -= 1
    return live
