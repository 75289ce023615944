"""The user window in memory: an exact log of when each user's units were spent.

In no window of W seconds are more than the limit's units admitted.
A unit spent at t has left a window of W at the instant t + W.
One log serves all limits of a user, since they are charged together, all or none.

The garbage collector may run at any call, and end a forgotten request that gives units back: what it gives
back while a log is being read stays aside until that is over.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right

from autoglm_throttle.limiting.instant import until
from autoglm_throttle.model import Decision, Reason, UserLimit

SWEPT_PER_NEWCOMER = 2
"""Users looked at for idleness when one arrives: more than one, so the idle leave faster than others come."""

SCANNED_WHEN_FULL = 16
"""Users looked at for one that may be forgotten when the table is full: bounds the work of one request."""

COMPACTED_SHARE = 4
"""A log drops its expired units once they are a quarter of it, so each unit is moved at most four times."""

CLAMPED_S = 1.0
"""A request that read the clock and was then kept from its decision for longer than this gets nothing back.
Threads wait for a lock for milliseconds; the longer this is, the likelier another unit is mistaken for it."""

Log = array
"""Instants at which units were spent, in rising order; one entry for each unit."""

_Charge = tuple[str, int, float, float, str]
"""What `SlidingWindow.give_back` is told."""


class SlidingWindow:
    """One set of limits and the logs of the users under it.

    A user is forgotten when all its units have left the longest window.
    At ``max_users`` the one with the most left goes first, and never one who has used up a limit:
    if only such users are found, a newcomer is charged to its neighbourhood until there is room again.

    Args:
        limits: 1 to 4 limits with different windows.
        max_users: most users remembered, > 0.
        neighbourhoods: the window that newcomers share while this one is full; None: they share one log.
    """

    def __init__(
        self, limits: tuple[UserLimit, ...], max_users: int, neighbourhoods: SlidingWindow | None = None
    ) -> None:
        self.limits = limits
        self.max_users = max_users
        self.overflowed: int = 0
        """Decisions taken on a shared log because the table was full of users who may not be forgotten."""
        self._only = limits[0] if len(limits) == 1 else None
        self._horizon_s = max(limit.window_s for limit in limits)
        self._smallest = min(limit.limit for limit in limits)
        self._logs: dict[str, Log[float]] = {}
        self._ring: list[str] = []
        self._hand = 0
        self._neighbourhoods = neighbourhoods
        self._common: Log[float] = Log("d")
        self._reading = False
        self._aside: list[_Charge] = []

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        names = ", ".join(limit.name for limit in self.limits)
        return f"SlidingWindow({names}, {len(self)} of {self.max_users} users)"

    def hit(self, user: str, units: int, now: float, group: str = "") -> Decision:
        """Charge ``units`` to every limit of the user, or to none.

        Args:
            user: identity text.
            units: >= 1.
            now: monotonic seconds; a clock that went back reads as standing still.
            group: the user's neighbourhood, charged instead while there is no room for a newcomer.
        """
        log = self._logs.get(user)
        if log is None:
            log = self._newcomer(user, units, now, group)
        only = self._only
        used = len(log)
        if only is not None and units == 1 and log:  # no call from here until the unit is spent
            oldest_leaves = log[0] + only.window_s
            left = only.limit - used - 1
            if log[-1] <= now < oldest_leaves and left >= 0:  # the usual case: room, and nothing has left
                log.append(now)
                reset_s = oldest_leaves - now
                return Decision(True, _OK, "", only.name, only.limit, left, 0.0, reset_s, only.window_s)
        decision = self.judge(log, units, now)
        if decision.allowed:
            self.spend(log, units, now)
        return decision

    def find(self, user: str, units: int, now: float, group: str = "") -> Log[float]:
        """The log that `hit` would charge, for a caller who asks another window before spending."""
        log = self._logs.get(user)
        return log if log is not None else self._newcomer(user, units, now, group)

    def peek(self, user: str) -> Log[float]:
        """The log of a user, an empty one for a user who is not remembered; makes no room."""
        return self._logs.get(user) or Log("d")

    def judge(self, log: Log[float], units: int, now: float) -> Decision:
        """The decision on ``units``, with what would remain after them; spends nothing."""
        only = self._only
        self._reading = True
        decision = self._judge(log, units, now) if only is None else _verdict(log, only, units, now)
        self._reading = False
        if self._aside:
            self._put_back()
        return decision

    def _judge(self, log: Log[float], units: int, now: float) -> Decision:
        verdicts = [_verdict(log, limit, units, now) for limit in self.limits]
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        if not refused:
            return _deciding(min(verdicts, key=_fullness), verdicts)
        for verdict in verdicts:
            if verdict.allowed:
                verdict.remaining += units
        return _deciding(max(refused, key=_patience), verdicts)

    def spend(self, log: Log[float], units: int, now: float) -> None:
        """Charge ``units`` that `judge` has just allowed."""
        if log:
            last = log[-1]
            if last > now:
                now = last
            if log[0] + self._horizon_s <= now:
                self._compact(log, now)
        if units == 1:
            log.append(now)
        else:
            log.extend([now] * units)

    def give_back(self, user: str, units: int, charged_at: float, now: float, group: str = "") -> bool:
        """Take back what `hit` charged at the instant ``charged_at`` and what was then not used.

        To be called once for a charge: a second call finds nothing, unless the user was charged
        for another request at the same instant, whose units are then not told apart.

        Args:
            user: identity text, as it was charged.
            units: as they were charged.
            charged_at: the ``now`` of the charge.
            now: monotonic seconds.
            group: the user's neighbourhood, as it was charged.

        Returns:
            Whether the units were found, or will be sought once a log is no longer being read.
            They are not found if they have left the window by themselves, or if the user was forgotten.
        """
        if self._reading:
            self._aside.append((user, units, charged_at, now, group))
            return True
        if charged_at + self._horizon_s <= now:
            return False
        self._reading = True
        found = self._find_and_take(user, units, charged_at, now, group)
        self._reading = False
        if self._aside:
            self._put_back()
        return found

    def _find_and_take(self, user: str, units: int, charged_at: float, now: float, group: str) -> bool:
        log = self._logs.get(user)
        if log is not None and _take_out(log, units, charged_at):
            return True
        if self._neighbourhoods is not None:
            return self._neighbourhoods.give_back(group, units, charged_at, now)
        return _take_out(self._common, units, charged_at)

    def _put_back(self) -> None:
        """Give back what was set aside."""
        while self._aside:
            self.give_back(*self._aside.pop())

    def _compact(self, log: Log[float], now: float) -> None:
        """Drop the expired units of a log, if they are many."""
        self._reading = True
        expired = _first_live(log, self._horizon_s, now)
        if expired * COMPACTED_SHARE >= len(log):
            del log[:expired]
        self._reading = False
        if self._aside:
            self._put_back()

    def sweep(self, now: float, users: int) -> None:
        """Look at the next ``users`` users and forget the idle ones."""
        for _ in range(min(users, len(self._ring))):
            slot = self._hand % len(self._ring)
            log = self._logs[self._ring[slot]]
            idle = not log or log[-1] + self._horizon_s <= now
            self._hand = slot if idle else slot + 1
            if idle:
                self._forget(slot)
        if self._neighbourhoods is not None:
            self._neighbourhoods.sweep(now, users)

    def mend(self) -> None:
        """Make the table whole again where a change was broken off half-way: the logs are the truth."""
        self._ring = list(self._logs)
        self._reading = False
        if self._neighbourhoods is not None:
            self._neighbourhoods.mend()

    def _newcomer(self, user: str, units: int, now: float, group: str) -> Log[float]:
        if units > self._smallest:
            return Log("d")
        if self._make_room(now):
            log = self._logs[user] = Log("d")
            self._ring.append(user)
            return log
        self.overflowed += 1
        if self._neighbourhoods is not None:
            return self._neighbourhoods.find(group, units, now)
        return self._common

    def _make_room(self, now: float) -> bool:
        if len(self._logs) < self.max_users:
            self.sweep(now, SWEPT_PER_NEWCOMER)
            return True
        best_slot, best_left = -1, 0.0
        self._reading = True
        for _ in range(min(SCANNED_WHEN_FULL, len(self._ring))):
            slot = self._hand % len(self._ring)
            left = self._left(self._logs[self._ring[slot]], now)
            if left > best_left:
                best_slot, best_left = slot, left
            self._hand = slot + 1
        self._reading = False
        if self._aside:
            self._put_back()
        if best_slot < 0:
            return False
        self._forget(best_slot)
        return True

    def _forget(self, slot: int) -> None:
        del self._logs[self._ring[slot]]
        last = self._ring.pop()
        if slot < len(self._ring):
            self._ring[slot] = last

    def _left(self, log: Log[float], now: float) -> float:
        """The share that is left of the limit with the least: 1 for an idle user, 0 for an exhausted one."""
        return min(
            1.0 - (len(log) - _first_live(log, limit.window_s, now)) / limit.limit for limit in self.limits
        )


_OK, _USER, _TOO_LARGE = Reason.OK, Reason.USER, Reason.TOO_LARGE
"""Before Python 3.12 reading a member from its class costs as much as a look into a dictionary."""


def _verdict(log: Log[float], limit: UserLimit, units: int, now: float) -> Decision:
    """What one limit says."""
    window_s = limit.window_s
    live, used = 0, len(log)
    reset_s = log[0] + window_s - now if used else float(window_s)
    if reset_s <= 0.0:
        live = _first_live(log, window_s, now)
        reset_s = log[live] + window_s - now if live < used else float(window_s)
    left = limit.limit - (used - live) - units
    if left < 0:
        return _refusal(log, live, limit, units, now)
    return Decision(True, _OK, "", limit.name, limit.limit, left, 0.0, reset_s, window_s)


def _refusal(log: Log[float], live: int, limit: UserLimit, units: int, now: float) -> Decision:
    name, most, window_s = limit.name, limit.limit, limit.window_s
    used = len(log) - live
    left = most - used if used < most else 0
    reset_s = log[live] + window_s - now if used else 0.0
    if units > most:
        return Decision(False, _TOO_LARGE, f"too_large:{name}", name, most, left, math.inf, reset_s, window_s)
    wait = until(log[live + used + units - most - 1] + window_s, now)
    return Decision(False, _USER, f"user:{name}", name, most, left, wait, reset_s, window_s)


def _first_live(log: Log[float], window_s: int, now: float) -> int:
    """Index of the first unit that is still inside the window: of those before it, ``t + window <= now``."""
    live = bisect_right(log, now - window_s)
    while live < len(log) and log[live] + window_s <= now:
        live += 1
    while live and log[live - 1] + window_s > now:
        live -= 1
    return live


def _take_out(log: Log[float], units: int, charged_at: float) -> bool:
    """Remove units charged at an instant, or at the later one at which the clock then stood still.

    Of the latter, at least one more unit must be there: the one that had made the clock stand.
    """
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


def _deciding(chosen: Decision, verdicts: list[Decision]) -> Decision:
    chosen.others = tuple(state for verdict in verdicts if verdict is not chosen for state in verdict.items)
    return chosen


def _fullness(verdict: Decision) -> float:
    return verdict.remaining / verdict.limit


def _patience(verdict: Decision) -> float:
    return verdict.retry_after_s
