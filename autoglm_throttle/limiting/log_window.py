"""Exact sliding windows for limits of up to 1000 units: a log of the instants of a user's units.

No window of W seconds admits more than the limit's units.
A unit spent at t leaves a window of W at the instant t + W.
One log serves all exact limits of a user, since they are charged together, all or none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, TypeAlias

from autoglm_throttle.limiting.bucket_window import BucketWindow
from autoglm_throttle.limiting.decisions import USER, Usage, Usages, decide, rejection, seconds_until
from autoglm_throttle.types import Decision, UserLimit

# Longest delay between reading the clock and the decision for which a refund is still found. Threads wait for
# a lock for milliseconds; a larger value makes a mistaken unit likelier.
CLAMPED_S = 1.0

_new = object.__new__  # Before Python 3.13 an ``__init__`` costs as much as fifteen stores.

WindowLayout: TypeAlias = "LogWindow | BucketWindow | MixedLayout"
Account = Any  # Account of one user: a log, a ring, or a tuple of them. Only its layout reads it.
Log = array  # Instants at which units were spent, in rising order; one entry for each unit


class LogWindow:
    """The exact limits of a set, with different windows; the account of a user is a `Log`.

    Units that have left the longest window are dropped by the next request, so that a clock that goes back
    counts as standing still.
    """

    def __init__(self, limits: Sequence[UserLimit]) -> None:
        self._horizon_s = max(limit.window_s for limit in limits)
        self.resize(limits)

    def open(self) -> Log[float]:
        """Return the log of a new user."""
        # A unit that has left is replaced in place. One appended to an empty log takes the memory of four.
        return Log("d", (-math.inf,))

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on; the windows are the same."""
        self._limits = tuple(limits)
        self._only = limits[0] if len(limits) == 1 else None
        self._window_s = float(limits[0].window_s)  # That of the only one; floats are added faster
        self._detail = f"user:{limits[0].name}"  # Of a rejection by the only one

    def hit(self, log: Log[float], units: int, now: float) -> Usages | Decision:
        """Charge ``units`` to every limit, or to none."""
        only = self._only
        if only is None or units != 1:
            verdict = self.test(log, units, now)
            if isinstance(verdict, tuple):
                self.charge(log, units, now)
            return verdict
        # The usual case, without a call: one limit, one unit, and at most one that has left since the last.
        window_s, used, most = self._window_s, len(log), only.limit
        leaves_s = log[0] + window_s if used else math.inf
        if leaves_s <= now:
            if used == 1:
                log[0] = now
                return ((only, most - 1, window_s),)
            del log[0]
            leaves_s = log[0] + window_s
            if leaves_s <= now:
                self._drop(log, now)
                return self.hit(log, 1, now)
            used -= 1
        if used >= most:
            fits_s = log[used - most] + window_s
            wait_s = fits_s - now
            decision = _new(Decision)  # as of `rejection`, without the calls
            decision.allowed, decision.reason, decision.detail = False, USER, self._detail
            decision.policy, decision.limit, decision.remaining = only.name, most, 0
            decision.retry_after_s = wait_s if now + wait_s >= fits_s else seconds_until(fits_s, now)
            decision.reset_after_s, decision.window_s = leaves_s - now, only.window_s
            decision.others, decision.would_reject = (), None
            return decision
        if not used:
            log.append(now)
            return ((only, most - 1, window_s),)
        log.append(now if log[-1] <= now else log[-1])
        return ((only, most - used - 1, leaves_s - now),)

    def test(self, log: Log[float], units: int, now: float) -> Usages | Decision:
        """Return the decision on ``units``; charges nothing."""
        only = self._only
        if only is None:
            return decide(self.test_each(log, units, now), units)
        if log and log[0] + self._horizon_s <= now:
            self._drop(log, now)
        verdict = evaluate_limit(log, only, units, now)
        return verdict if isinstance(verdict, Decision) else (verdict,)

    def test_each(
        self, log: Log[float], units: int, now: float, more: Sequence[int] | None = None
    ) -> list[Usage | Decision]:
        """Return each limit's decision on ``units``, and its own number of ``more``; charges nothing."""
        if log and log[0] + self._horizon_s <= now:
            self._drop(log, now)
        if more is None:
            return [evaluate_limit(log, limit, units, now) for limit in self._limits]
        each = zip(self._limits, more, strict=True)
        return [evaluate_limit(log, limit, units + own, now) for limit, own in each]

    def charge(self, log: Log[float], units: int, now: float) -> None:
        """Charge ``units`` that `test` has just allowed; a clock that went back counts as standing still."""
        if log and log[-1] > now:
            now = log[-1]
        if units == 1:
            log.append(now)
        else:
            log.extend([now] * units)

    charge_over = charge  # A log has no largest count

    def _drop(self, log: Log[float], now: float) -> None:
        """Drop the units that have left the longest window, mostly the oldest one alone."""
        del log[0]
        if log and log[0] + self._horizon_s <= now:
            del log[: first_live(log, self._horizon_s, now)]

    def refund(self, log: Log[float], units: int, charged_at: float, now: float) -> bool:
        """Remove units of one charge; return whether all of them were present and still in the window.

        A charge under a stopped clock is found at the later instant, if at least one more unit is present
        there: the one that had stopped the clock.
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

    def is_idle(self, log: Log[float], now: float) -> bool:
        """Whether no limit counts any unit."""
        return not log or log[-1] + self._horizon_s <= now

    def remaining(self, log: Log[float], now: float) -> float:
        """Return the remaining share of the fullest limit: 1 for an idle user, 0 for an exhausted one."""
        return min(
            1.0 - (len(log) - first_live(log, limit.window_s, now)) / limit.limit for limit in self._limits
        )


def evaluate_limit(log: Log[float], limit: UserLimit, units: int, now: float) -> Usage | Decision:
    """Return one limit's decision on ``units``, with the units that would remain."""
    window_s = limit.window_s
    live, used = 0, len(log)
    reset_s = log[0] + window_s - now if used else float(window_s)
    if reset_s <= 0.0:
        live = first_live(log, window_s, now)
        reset_s = log[live] + window_s - now if live < used else float(window_s)
    remaining = limit.limit - (used - live) - units
    return (limit, remaining, reset_s) if remaining >= 0 else _rejection(log, live, limit, units, now)


def _rejection(log: Log[float], live: int, limit: UserLimit, units: int, now: float) -> Decision:
    """Build the rejection of ``units`` too many; units before the index ``live`` have left the window."""
    window_s, used = limit.window_s, len(log) - live
    excess = used + units - limit.limit
    wait = math.inf if units > limit.limit else seconds_until(log[live + excess - 1] + window_s, now)
    return rejection(limit, used, log[live] + window_s - now if used else 0.0, wait)


def first_live(log: Log[float], window_s: int, now: float) -> int:
    """Return the index of the first unit still in the window: for earlier ones ``t + window <= now``."""
    # ``now - window`` may be rounded to either side of the exact sum: correct the index by steps.
    live = bisect_right(log, now - window_s)
    while live < len(log) and log[live] + window_s <= now:
        live += 1
    while live and log[live - 1] + window_s > now:
        live -= 1
    return live


class MixedLayout:
    """Several layouts side by side, each with the indices of its limits; an account is a tuple of theirs."""

    def __init__(self, parts: Sequence[tuple[LogWindow | BucketWindow, Sequence[int]]]) -> None:
        self._parts = tuple(parts)
        places = [place for _, theirs in parts for place in theirs]
        self._order = sorted(range(len(places)), key=places.__getitem__)

    def open(self) -> Account:
        """Return the account of a new user."""
        return tuple([layout.open() for layout, _ in self._parts])

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on."""
        for layout, places in self._parts:
            layout.resize([limits[place] for place in places])

    def test(self, account: Account, units: int, now: float) -> Usages | Decision:
        """Return the decision on ``units``; charges nothing."""
        return decide(self.test_each(account, units, now), units)

    def test_each(
        self, account: Account, units: int, now: float, more: Sequence[int] | None = None
    ) -> list[Usage | Decision]:
        """Return each limit's decision on ``units`` and ``more``, in the order of the set."""
        verdicts: list[Usage | Decision] = []
        for (layout, places), part in zip(self._parts, account, strict=True):
            theirs = None if more is None else [more[place] for place in places]
            verdicts += layout.test_each(part, units, now, theirs)
        return [verdicts[index] for index in self._order]

    def charge(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` under every limit."""
        for (layout, _), part in zip(self._parts, account, strict=True):
            layout.charge(part, units, now)

    def charge_over(self, account: Account, units: int, now: float) -> None:
        """Charge units under every limit without a test."""
        for (layout, _), part in zip(self._parts, account, strict=True):
            layout.charge_over(part, units, now)

    def refund(self, account: Account, units: int, charged_at: float, now: float) -> bool:
        """Remove units from every layout that still counts them; True if any did."""
        refunded = False
        for (layout, _), part in zip(self._parts, account, strict=True):
            refunded |= layout.refund(part, units, charged_at, now)
        return refunded

    def is_idle(self, account: Account, now: float) -> bool:
        """Whether no limit counts any unit."""
        return all(layout.is_idle(part, now) for (layout, _), part in zip(self._parts, account, strict=True))

    def remaining(self, account: Account, now: float) -> float:
        """Return the remaining share of the fullest limit."""
        parts = zip(self._parts, account, strict=True)
        return min(layout.remaining(part, now) for (layout, _), part in parts)


def layout_of(limits: tuple[UserLimit, ...]) -> WindowLayout:
    """Return the layout for a set of limits: one log for all exact limits, a ring for each larger one."""
    exact = [index for index, limit in enumerate(limits) if limit.exact]
    parts: list[tuple[LogWindow | BucketWindow, list[int]]] = []
    if exact:
        parts.append((LogWindow([limits[index] for index in exact]), exact))
    parts += [(BucketWindow(limit), [index]) for index, limit in enumerate(limits) if not limit.exact]
    return parts[0][0] if len(parts) == 1 else MixedLayout(parts)
