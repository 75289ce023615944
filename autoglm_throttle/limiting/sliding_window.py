"""User limits in memory: a table of each user's account under one set of limits.

No window of W seconds admits more than the limit's units.
All limits of a user are charged together, or none; `window_layout` defines the accounts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.decisions import OK, deciding_limit, rejection
from autoglm_throttle.limiting.log_window import Account, evaluate_limit, layout_of
from autoglm_throttle.types import Decision, UserLimit

# Users checked for idleness per new user: more than one, so that the table shrinks faster than it grows.
SWEPT_PER_NEWCOMER = 2

# Users scanned for one to evict when the table is full: bounds the work of one request.
SCANNED_WHEN_FULL = 16


class EvictionRing:
    """Names of the users of a table, in the order in which they are checked for eviction."""

    __slots__ = ("hand", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hand: int = 0  # Index of the name to check next, modulo their number

    def remove(self, slot: int) -> str:
        """Remove a name; the last one takes its place."""
        name, last = self.names[slot], self.names.pop()
        if slot < len(self.names):
            self.names[slot] = last
        return name


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
        self.max_users: int = max_users
        self.accounts: dict[str, Account] = {}
        self.ring: EvictionRing = EvictionRing()
        self.neighbourhoods: SlidingWindow | None = neighbourhoods
        # Decisions made on a shared account because the table was full of users that may not be evicted.
        self.overflowed: int = 0
        self._layout = layout_of(limits)
        # The limit, if there is only one and it is exact: the usual case, and the fastest.
        self._only = limits[0] if len(limits) == 1 and limits[0].exact else None
        self._smallest = min(limit.limit for limit in limits)
        self._common: Account = self._layout.open()

    def __len__(self) -> int:
        return len(self.accounts)

    def __contains__(self, user: str) -> bool:
        return user in self.accounts

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
        account = self.accounts.get(user)
        if account is None:
            account = self._new_account(user, units, now, group)
        only = self._only
        if only is not None and units == 1:
            remaining = only.limit - len(account) - 1
            if account and remaining >= 0:
                oldest_leaves = account[0] + only.window_s
                if account[-1] <= now < oldest_leaves:  # usually: none expired
                    account.append(now)
                    return Decision(
                        True,
                        OK,
                        "",
                        only.name,
                        only.limit,
                        remaining,
                        0.0,
                        oldest_leaves - now,
                        only.window_s,
                    )
        decision = self.test(account, units, now)
        if decision.allowed:
            self.charge(account, units, now)
        return decision

    def find(self, user: str, units: int, now: float, group: str = "") -> Account:
        """Return the account that `hit` would charge, for a caller that tests another window first."""
        account = self.accounts.get(user)
        return account if account is not None else self._new_account(user, units, now, group)

    def peek(self, user: str) -> Account:
        """Return the account of a user, empty for an unknown user; evicts no one."""
        account = self.accounts.get(user)
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
        if within is not None:
            return self._test_within(account, units, within, now)
        if only is not None:
            return evaluate_limit(account, only, units, now)
        return deciding_limit(self._layout.test(account, units, now), units)

    def charge(self, account: Account, units: int, now: float) -> None:
        """Charge ``units`` that `test` has just allowed."""
        self._layout.charge(account, units, now)

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
            Whether the units were found. They are not if they have left every window, or if the user was
            evicted.
        """
        account = self.accounts.get(user)
        if account is not None and self._layout.refund(account, units, charged_at, now):
            return True
        if self.neighbourhoods is not None:
            return self.neighbourhoods.give_back(group, units, charged_at, now)
        return self._layout.refund(self._common, units, charged_at, now)

    def resize(self, limits: tuple[UserLimit, ...]) -> None:
        """Apply other limits to all users from now on; counted units stay.

        Args:
            limits: the same windows in the same order, of at most the units that this one was made with.
        """
        self.limits = limits
        self._layout.resize(limits)
        self._only = limits[0] if self._only is not None else None
        self._smallest = min(limit.limit for limit in limits)
        if self.neighbourhoods is not None:
            self.neighbourhoods.resize(limits)

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

    def sweep(self, now: float, users: int) -> None:
        """Check the next ``users`` users and evict the idle ones."""
        ring, idle = self.ring, self._layout.is_idle
        for _ in range(min(users, len(ring.names))):
            slot = ring.hand % len(ring.names)
            if idle(self.accounts[ring.names[slot]], now):
                ring.hand = slot
                del self.accounts[ring.remove(slot)]
            else:
                ring.hand = slot + 1
        if self.neighbourhoods is not None:
            self.neighbourhoods.sweep(now, users)

    def _new_account(self, user: str, units: int, now: float, group: str) -> Account:
        if units > self._smallest:
            return self._layout.open()
        if self._ensure_capacity(now):
            account = self.accounts[user] = self._layout.open()
            self.ring.names.append(user)
            return account
        self.overflowed += 1
        if self.neighbourhoods is not None:
            return self.neighbourhoods.find(group, units, now)
        return self._common

    def _ensure_capacity(self, now: float) -> bool:
        if len(self.accounts) < self.max_users:
            self.sweep(now, SWEPT_PER_NEWCOMER)
            return True
        ring, best_slot, best_left = self.ring, -1, 0.0
        for _ in range(min(SCANNED_WHEN_FULL, len(ring.names))):
            slot = ring.hand % len(ring.names)
            left = self._layout.remaining(self.accounts[ring.names[slot]], now)
            if left > best_left:
                best_slot, best_left = slot, left
            ring.hand = slot + 1
        if best_slot < 0:
            return False
        del self.accounts[ring.remove(best_slot)]
        return True


def _partial_rejection(limit: UserLimit, decision: Decision, units: int, missing: int) -> Decision:
    """Build the rejection for a limit of which ``missing`` units may not be used up.

    They were spent elsewhere before now, so they are available again one window from now.
    """
    wait_s = math.inf if units > limit.limit else min(decision.retry_after_s, limit.window_s)
    left = max(0, int(decision.remaining) - missing)
    return rejection(limit, limit.limit - left, decision.reset_after_s or limit.window_s, wait_s)
