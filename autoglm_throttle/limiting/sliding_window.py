"""The user window in memory: an exact log of when each user's units were spent.

In no window of W seconds are more than the limit's units admitted.
A unit spent at t has left a window of W at the instant t + W.
One log serves all limits of a user, since they are charged together, all or none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

from autoglm_throttle.model import Decision, Reason, UserLimit, WindowState

SWEPT_PER_NEWCOMER = 2
"""Users looked at for idleness when one arrives: more than one, so the idle leave faster than others come."""

SCANNED_WHEN_FULL = 16
"""Users looked at for one that may be forgotten when the table is full: bounds the work of one request."""

COMPACTED_SHARE = 4
"""A log drops its expired units once they are a quarter of it, so each unit is moved at most four times."""


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
        self.overflowed = 0
        """Decisions taken on a shared log because the table was full of users who may not be forgotten."""
        self._horizon_s = max(limit.window_s for limit in limits)
        self._smallest = min(limit.limit for limit in limits)
        self._logs: dict[str, array[float]] = {}
        self._ring: list[str] = []
        self._hand = 0
        self._neighbourhoods = neighbourhoods
        self._common: array[float] = array("d")

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
        decision = self.look(user, units, now, group)
        if decision.allowed:
            self.spend(user, units, now, group)
        return decision

    def look(self, user: str, units: int, now: float, group: str = "") -> Decision:
        """The decision that `hit` would take, its ``remaining`` as it would be after it; spends nothing."""
        log = self._logs.get(user)
        if log is None:
            if units > self._smallest:
                return self._refusal(self._common, units, now)
            if not self._make_room(now):
                self.overflowed += 1
                if self._neighbourhoods is not None:
                    return self._neighbourhoods.look(group, units, now)
                log = self._common
            else:
                log = self._logs[user] = array("d")
                self._ring.append(user)
        if log and log[-1] > now:
            now = log[-1]
        states = []
        for limit in self.limits:
            window_s = limit.window_s
            live = _first_live(log, window_s, now)
            left = limit.limit - (len(log) - live) - units
            if left < 0:
                return self._refusal(log, units, now)
            reset_s = log[live] + window_s - now if live < len(log) else float(window_s)
            states.append(WindowState(limit.name, limit.limit, window_s, left, reset_s))
        least = states[0] if len(states) == 1 else min(states, key=_fullness)
        return Decision(
            True, Reason.OK, "", least.name, least.limit, least.remaining, 0.0, least.reset_s, tuple(states)
        )

    def spend(self, user: str, units: int, now: float, group: str = "") -> None:
        """Charge ``units`` that `look` has just allowed, given the same arguments."""
        log = self._logs.get(user)
        if log is None:
            if self._neighbourhoods is not None:
                self._neighbourhoods.spend(group, units, now)
                return
            log = self._common
        if log:
            now = max(now, log[-1])
            expired = _first_live(log, self._horizon_s, now)
            if expired * COMPACTED_SHARE > len(log):
                del log[:expired]
        if units == 1:
            log.append(now)
        else:
            log.extend([now] * units)

    def sweep(self, now: float, users: int) -> None:
        """Look at the next ``users`` users and forget the idle ones."""
        for _ in range(min(users, len(self._ring))):
            slot = self._hand % len(self._ring)
            log = self._logs[self._ring[slot]]
            if not log or log[-1] + self._horizon_s <= now:
                self._forget(slot)
            else:
                self._hand = slot + 1
        if self._neighbourhoods is not None:
            self._neighbourhoods.sweep(now, users)

    def _make_room(self, now: float) -> bool:
        if len(self._logs) < self.max_users:
            self.sweep(now, SWEPT_PER_NEWCOMER)
            return True
        best_slot, best_left = -1, 0.0
        for _ in range(min(SCANNED_WHEN_FULL, len(self._ring))):
            slot = self._hand % len(self._ring)
            left = self._left(self._logs[self._ring[slot]], now)
            if left > best_left:
                best_slot, best_left = slot, left
            self._hand = slot + 1
        if best_slot < 0:
            return False
        self._forget(best_slot)
        return True

    def _forget(self, slot: int) -> None:
        del self._logs[self._ring[slot]]
        last = self._ring.pop()
        if slot < len(self._ring):
            self._ring[slot] = last

    def _left(self, log: array[float], now: float) -> float:
        """The share that is left of the limit with the least: 1 for an idle user, 0 for an exhausted one."""
        return min(
            1.0 - (len(log) - _first_live(log, limit.window_s, now)) / limit.limit for limit in self.limits
        )

    def _refusal(self, log: array[float], units: int, now: float) -> Decision:
        states = []
        worst, wait = self.limits[0], -1.0
        for limit in self.limits:
            live = _first_live(log, limit.window_s, now)
            used = len(log) - live
            reset_s = log[live] + limit.window_s - now if used else 0.0
            states.append(
                WindowState(limit.name, limit.limit, limit.window_s, max(0, limit.limit - used), reset_s)
            )
            its_wait = _wait(log, live, limit, units, now)
            if its_wait > wait:
                worst, wait = limit, its_wait
        state = states[self.limits.index(worst)]
        too_large = math.isinf(wait)
        return Decision(
            allowed=False,
            reason=Reason.TOO_LARGE if too_large else Reason.USER,
            detail=f"{'too_large' if too_large else 'user'}:{worst.name}",
            policy=worst.name,
            limit=worst.limit,
            remaining=state.remaining,
            retry_after_s=wait,
            reset_after_s=state.reset_s,
            items=tuple(states),
        )


def _fullness(state: WindowState) -> float:
    return state.remaining / state.limit


def _first_live(log: array[float], window_s: int, now: float) -> int:
    """Index of the first unit that is still inside the window: of those before it, ``t + window <= now``."""
    if not log or log[0] + window_s > now:
        return 0
    live = bisect_right(log, now - window_s)
    while live < len(log) and log[live] + window_s <= now:
        live += 1
    while log[live - 1] + window_s > now:
        live -= 1
    return live


def _wait(log: array[float], live: int, limit: UserLimit, units: int, now: float) -> float:
    """Seconds until ``units`` fit under the limit, 0 if they do, infinite if they never will."""
    if units > limit.limit:
        return math.inf
    excess = len(log) - live + units - limit.limit
    if excess <= 0:
        return 0.0
    fits_at = log[live + excess - 1] + limit.window_s
    wait = fits_at - now
    while now + wait < fits_at:
        wait = math.nextafter(wait, math.inf)
    return wait
