"""User limits in memory: a table of each user's account under one set of limits.

No window of W seconds admits more than the limit's units.
All limits of a user are charged together, or none; `log_window` defines the accounts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autoglm_throttle.limiting.decisions import Usage, Usages, decide, rejection
from autoglm_throttle.limiting.log_window import Account, LogWindow, layout_of
from autoglm_throttle.types import Decision, UserLimit

# Users checked for idleness per new user: more than one, so that the table shrinks faster than it grows.
SWEPT_PER_NEWCOMER = 2

# Users scanned for one to evict when the table is full: bounds the work of one request.
SCANNED_WHEN_FULL = 16


class SlidingWindow:
    """One set of limits and the accounts of the users under it.

    A user is evicted when all its units have left the longest window.
    At ``max_users`` the user with the most units left is evicted first, never one with an exhausted limit.
    If the scan finds only such users, a new user is charged to its neighbourhood until there is capacity, or
    to one common account in the window of the neighbourhoods.
    """

    def __init__(
        self, limits: tuple[UserLimit, ...], max_users: int, neighbourhoods: SlidingWindow | None = None
    ) -> None:
        self.limits: tuple[UserLimit, ...] = limits  # With different windows
        self.max_users: int = max_users  # Capacity of the table
        self.accounts: dict[str, Account] = {}
        self.names: list[str] = []  # The users, in the order in which they are checked for eviction
        self._hand = 0  # Index of the name to check next, modulo their number
        self.neighbourhoods: SlidingWindow | None = neighbourhoods
        # Decisions made on a shared account because the table was full of users that may not be evicted.
        self.overflowed: int = 0
        self._layout = layout_of(limits)
        # Returns the decision on units of an account; charges nothing.
        self.test: Callable[[Account, int, float], Usages | Decision] = self._layout.test
        # Charges units that `test` has just allowed.
        self.charge: Callable[[Account, int, float], None] = self._layout.charge
        # Charges units without a test, above the limits as well.
        self.charge_over: Callable[[Account, int, float], None] = self._layout.charge_over
        # Charges units of an account to every limit, or to none.
        self.hit: Callable[[Account, int, float], Usages | Decision] = (
            self._layout.hit if isinstance(self._layout, LogWindow) else self._hit
        )
        self._smallest = min(limit.limit for limit in limits)
        self._common: Account = self._layout.open()

    def __len__(self) -> int:
        return len(self.accounts)

    def _hit(self, account: Account, units: int, now: float) -> Usages | Decision:
        verdict = self.test(account, units, now)
        if isinstance(verdict, tuple):
            self.charge(account, units, now)
        return verdict

    def new_account(self, user: str, units: int, now: float) -> Account | None:
        """Return the account of a user who has none; None: the table has no capacity.

        It is no account of the table if the request can never fit.
        """
        if units > self._smallest:
            return self._layout.open()
        if not self._ensure_capacity(now):
            return None
        account = self.accounts[user] = self._layout.open()
        self.names.append(user)
        return account

    def shared_account(self, group: str, units: int, now: float) -> Account:
        """Return the account of a neighbourhood, for a new user while the table has no capacity."""
        self.overflowed += 1
        neighbourhoods = self.neighbourhoods
        if neighbourhoods is None:
            return self._common
        account = neighbourhoods.accounts.get(group)
        if account is None:
            account = neighbourhoods.new_account(group, units, now)
        return neighbourhoods.shared_account(group, units, now) if account is None else account

    def peek(self, user: str) -> Account:
        """Return the account of a user, empty for an unknown user; evicts no one."""
        account = self.accounts.get(user)
        return account if account is not None else self._layout.open()

    def give_back(self, user: str, units: int, charged_at: float, now: float) -> bool:
        """Refund unused units that were charged at ``charged_at``; return whether they were found.

        They are not if they have left every window, or if the user was evicted. A second call finds nothing,
        with two exceptions: another charge of the user at the same instant, or in the same bucket of an
        inexact limit. Such units look alike.
        """
        account = self.accounts.get(user)
        return account is not None and self._layout.refund(account, units, charged_at, now)

    def give_back_shared(self, group: str, units: int, charged_at: float, now: float) -> bool:
        """Refund units that were charged to the account of a neighbourhood."""
        others = self.neighbourhoods
        if others is None:
            return self._layout.refund(self._common, units, charged_at, now)
        return others.give_back(group, units, charged_at, now) or others.give_back_shared(
            group, units, charged_at, now
        )

    def resize(self, limits: tuple[UserLimit, ...]) -> None:
        """Apply other limits to all users from now on; counted units stay.

        The windows are the same, in the same order, of at most the units that this one was made with.
        """
        self.limits = limits
        self._layout.resize(limits)
        self._smallest = min(limit.limit for limit in limits)
        if self.neighbourhoods is not None:
            self.neighbourhoods.resize(limits)

    def test_within(
        self, account: Account, units: int, now: float, within: Sequence[int]
    ) -> Usages | Decision:
        """Return the decision if only the units of each limit in ``within`` may be used up.

        It tests the units plus the missing part, and answers as if the part were the limit.
        """
        missing = [max(0, limit.limit - part) for limit, part in zip(self.limits, within, strict=True)]
        verdicts: list[Usage | Decision] = self._layout.test_each(account, units, now, missing)
        for place, (limit, part) in enumerate(zip(self.limits, missing, strict=True)):
            verdict = verdicts[place]
            if part and isinstance(verdict, Decision):
                verdicts[place] = _partial_rejection(limit, verdict, units, part)
        return decide(verdicts, units)

    def sweep(self, now: float, users: int) -> None:
        """Check the next ``users`` users and evict the idle ones."""
        names, is_idle = self.names, self._layout.is_idle
        for _ in range(min(users, len(names))):
            slot = self._hand % len(names)
            if is_idle(self.accounts[names[slot]], now):
                self._hand = slot
                self._evict(slot)
            else:
                self._hand = slot + 1
        if self.neighbourhoods is not None:
            self.neighbourhoods.sweep(now, users)

    def _ensure_capacity(self, now: float) -> bool:
        if len(self.accounts) < self.max_users:
            self.sweep(now, SWEPT_PER_NEWCOMER)
            return True
        names, best_slot, best_left = self.names, -1, 0.0
        for _ in range(min(SCANNED_WHEN_FULL, len(names))):
            slot = self._hand % len(names)
            left = self._layout.remaining(self.accounts[names[slot]], now)
            if left > best_left:
                best_slot, best_left = slot, left
            self._hand = slot + 1
        if best_slot < 0:
            return False
        self._evict(best_slot)
        return True

    def _evict(self, slot: int) -> None:
        name, last = self.names[slot], self.names.pop()
        if slot < len(self.names):
            self.names[slot] = last
        del self.accounts[name]


def _partial_rejection(limit: UserLimit, decision: Decision, units: int, missing: int) -> Decision:
    """Build the rejection for a limit of which ``missing`` units may not be used up.

    They were spent elsewhere before now, so they are available again one window from now.
    """
    wait_s = math.inf if units > limit.limit else min(decision.retry_after_s, limit.window_s)
    left = max(0, int(decision.remaining) - missing)
    return rejection(limit, limit.limit - left, decision.reset_after_s or limit.window_s, wait_s)
