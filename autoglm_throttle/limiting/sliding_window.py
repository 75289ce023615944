"""User limits in memory: a table of each user's account under one set of limits.

No window of W seconds admits more than the limit's units.
All limits of a user are charged together, or none; `window_layout` defines the accounts.

The garbage collector may run at any call and settle a dropped request, which refunds units.
Refunds that arrive while an account is read or changed are deferred until that is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.limit_decision import OK, deciding_limit, rejection
from autoglm_throttle.limiting.log_window import evaluate_limit
from autoglm_throttle.limiting.window_layout import Account, layout_of
from autoglm_throttle.types import Decision, UserLimit

SWEPT_PER_NEWCOMER = 2
"""Users checked for idleness per new user: more than one, so that the table shrinks faster than it grows."""

SCANNED_WHEN_FULL = 16
"""Users scanned for one to evict when the table is full: bounds the work of one request."""

_Refund = tuple[str, int, float, float, str]
"""Arguments of a deferred `SlidingWindow.give_back`."""


class SlidingWindow:
    """One set of limits and the accounts of the users under it.

    A user is evicted when all its units have left the longest window.
    At ``max_users`` the user with the most units left is evicted first, never one with an exhausted limit.
    If the scan finds only such users, a new user is charged to its neighbourhood until there is capacity.

    Args:
        limits: 1 to 4 limits with different windows.
        max_users: capacity of the table, > 0.
        neighbourhoods: the window that new users share while this one is full; None: they share one account.
    """

    def __init__(
        self, limits: tuple[UserLimit, ...], max_users: int, neighbourhoods: SlidingWindow | None = None
    ) -> None:
        self.limits: tuple[UserLimit, ...] = limits
        self.max_users = max_users
        self.overflowed: int = 0
        """Decisions made on a shared account because the table was full of users that may not be evicted."""
        self._layout = layout_of(limits)
        self._only = limits[0] if len(limits) == 1 and limits[0].exact else None
        """The limit, if there is only one and it is exact: the usual case, and the fastest."""
        self._smallest = min(limit.limit for limit in limits)
        self._accounts: dict[str, Account] = {}
        self._ring: list[str] = []
        self._hand = 0
        self._neighbourhoods = neighbourhoods
        self._common: Account = self._layout.open()
        self._busy = False
        self._deferred: list[_Refund] = []

    def __len__(self) -> int:
        return len(self._accounts)

    def __contains__(self, user: str) -> bool:
        return user in self._accounts

    def __repr__(self) -> str:
        names = ", ".join(limit.name for limit in self.limits)
        return f"SlidingWindow({names}, {len(self)} of {self.max_users} users)"

    def hit(self, user: str, units: int, now: float, group: str = "") -> Decision:
        """Charge ``units`` to every limit of the user, or to no limit.

        Args:
            user: identity text.
            units: >= 1.
            now: monotonic seconds; a clock that went back counts as standing still.
            group: the user's neighbourhood, charged instead while the table has no capacity.
        """
        account = self._accounts.get(user)
        if account is None:
            account = self._new_account(user, units, now, group)
        only = self._only
        if only is not None and units == 1:
            used = len(account)
            # No call from here until the unit is charged: a finalizer could refund units of this account.
            if account:
                oldest_leaves = account[0] + only.window_s
                remaining = only.limit - used - 1
                if account[-1] <= now < oldest_leaves and remaining >= 0:  # usually: units left, none expired
                    account.append(now)
                    reset_s = oldest_leaves - now
                    return Decision(
                        True, OK, "", only.name, only.limit, remaining, 0.0, reset_s, only.window_s
                    )
        decision = self.test(account, units, now)
        if decision.allowed:
            self.charge(account, units, now)
        return decision

    def find(self, user: str, units: int, now: float, group: str = "") -> Account:
        """Return the account that `hit` would charge, for a caller that tests another window first."""
        account = self._accounts.get(user)
        return account if account is not None else self._new_account(user, units, now, group)

    def peek(self, user: str) -> Account:
        """Return the account of a user, empty for an unknown user; evicts no one."""
        account = self._accounts.get(user)
        return account if account is not None else self._layout.open()

    def test(self, account: Account, units: int, now: float, within: Sequence[int] | None = None) -> Decision:
        """Return the decision on ``units``, with the units that would remain; charges nothing.

        Args:
            account: from `find` or `peek`.
            units: >= 1.
            now: monotonic seconds.
            within: usable units of each limit, in their order, where other processes count as well;
                None: the full limits.
        """
        only = self._only
        self._busy = True
        if within is not None:
            decision = self._test_within(account, units, within, now)
        elif only is not None:
            decision = evaluate_limit(account, only, units, now)
        else:
            decision = deciding_limit(self._layout.test(account, units, now), units)
        self._busy = False
        if self._deferred:
            self._apply_deferred()
        return decision

    def charge(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` that `test` has just allowed."""
        self._busy = True
        self._layout.charge(account, units, now)
        self._busy = False
        if self._deferred:
            self._apply_deferred()

    def give_back(self, user: str, units: int, charged_at: float, now: float, group: str = "") -> bool:
        """Refund unused units that `hit` charged at the instant ``charged_at``.

        Call it once for a charge. A second call finds nothing, with two exceptions: another charge of the
        user at the same instant, or in the same bucket of an inexact limit. Such units look alike.

        Args:
            user: identity text, as it was charged.
            units: as they were charged.
            charged_at: the ``now`` of the charge.
            now: monotonic seconds.
            group: the user's neighbourhood, as it was charged.

        Returns:
            Whether the units were found, or the refund was deferred until an account is no longer read.
            They are not found if they have left every window, or if the user was evicted.
        """
        if self._busy:
            self._deferred.append((user, units, charged_at, now, group))
            return True
        self._busy = True
        refunded = self._refund(user, units, charged_at, now, group)
        self._busy = False
        if self._deferred:
            self._apply_deferred()
        return refunded

    def resize(self, limits: tuple[UserLimit, ...]) -> None:
        """Apply other limits to all users from now on; counted units stay.

        Args:
            limits: the same windows in the same order, of at most the units that this one was made with.
        """
        self.limits = limits
        self._layout.resize(limits)
        self._only = limits[0] if self._only is not None else None
        self._smallest = min(limit.limit for limit in limits)
        if self._neighbourhoods is not None:
            self._neighbourhoods.resize(limits)

    def _test_within(self, account: Account, units: int, within: Sequence[int], now: float) -> Decision:
        """Return the decision if only a part of each limit may be used up.

        It tests the units plus the missing part, and answers as if the part were the limit.
        """
        only = self._only
        if only is not None:
            missing = max(0, only.limit - within[0])
            decision = evaluate_limit(account, only, units + missing, now)
            return (
                _partial_rejection(only, decision, units, missing)
                if missing and not decision.allowed
                else decision
            )
        limits = self.limits
        requested = [units + max(0, limit.limit - part) for limit, part in zip(limits, within, strict=True)]
        decisions = self._layout.test_each(account, requested, now)
        for place, decision in enumerate(decisions):
            if not decision.allowed and requested[place] > units:
                decisions[place] = _partial_rejection(
                    limits[place], decision, units, requested[place] - units
                )
        return deciding_limit(decisions, units)

    def _refund(self, user: str, units: int, charged_at: float, now: float, group: str) -> bool:
        account = self._accounts.get(user)
        if account is not None and self._layout.refund(account, units, charged_at, now):
            return True
        if self._neighbourhoods is not None:
            return self._neighbourhoods.give_back(group, units, charged_at, now)
        return self._layout.refund(self._common, units, charged_at, now)

    def _apply_deferred(self) -> None:
        """Apply the deferred refunds."""
        while self._deferred:
            self.give_back(*self._deferred.pop())

    def sweep(self, now: float, users: int) -> None:
        """Check the next ``users`` users and evict the idle ones."""
        ring, idle = self._ring, self._layout.is_idle
        for _ in range(min(users, len(ring))):
            slot = self._hand % len(ring)
            if idle(self._accounts[ring[slot]], now):
                self._hand = slot
                self._evict(slot)
            else:
                self._hand = slot + 1
        if self._neighbourhoods is not None:
            self._neighbourhoods.sweep(now, users)

    def repair(self) -> None:
        """Rebuild the ring from the accounts after an interrupted change."""
        # The accounts are complete; the ring of names may lack one or have one too many.
        self._ring = list(self._accounts)
        self._busy = False
        if self._neighbourhoods is not None:
            self._neighbourhoods.repair()

    def _new_account(self, user: str, units: int, now: float, group: str) -> Account:
        if units > self._smallest:
            return self._layout.open()
        if self._ensure_capacity(now):
            account = self._accounts[user] = self._layout.open()
            self._ring.append(user)
            return account
        self.overflowed += 1
        if self._neighbourhoods is not None:
            return self._neighbourhoods.find(group, units, now)
        return self._common

    def _ensure_capacity(self, now: float) -> bool:
        if len(self._accounts) < self.max_users:
            self.sweep(now, SWEPT_PER_NEWCOMER)
            return True
        best_slot, best_left = -1, 0.0
        self._busy = True
        for _ in range(min(SCANNED_WHEN_FULL, len(self._ring))):
            slot = self._hand % len(self._ring)
            left = self._layout.remaining(self._accounts[self._ring[slot]], now)
            if left > best_left:
                best_slot, best_left = slot, left
            self._hand = slot + 1
        self._busy = False
        if self._deferred:
            self._apply_deferred()
        if best_slot < 0:
            return False
        self._evict(best_slot)
        return True

    def _evict(self, slot: int) -> None:
        del self._accounts[self._ring[slot]]
        last = self._ring.pop()
        if slot < len(self._ring):
            self._ring[slot] = last


def _partial_rejection(limit: UserLimit, decision: Decision, units: int, missing: int) -> Decision:
    """Build the rejection for a limit of which ``missing`` units may not be used up.

    They were spent elsewhere before now, so they are available again one window from now.
    """
    wait_s = math.inf if units > limit.limit else min(decision.retry_after_s, limit.window_s)
    left = max(0, int(decision.remaining) - missing)
    return rejection(limit, limit.limit - left, decision.reset_after_s or limit.window_s, wait_s)
