"""User limits in memory: units of users and addresses, tested and charged all or none.

`limit_sets` selects the limits of a demand; each set counts for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autoglm_throttle.limiting.limit_sets import LimitSet, LimitSets
from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.types import Decision, Demand

Part = Sequence[int]
"""Usable units of each limit of a set, in their order."""

NEIGHBOURHOODS_SHARE = 0.1
"""Capacity for neighbourhoods of new users, as a share of ``max_users``."""


class UserLimits:
    """All user limits of a service, kept in memory.

    Args:
        sets: selects the limits of a demand.
        max_users: capacity of the user table under each set of limits.
    """

    def __init__(self, sets: LimitSets, max_users: int) -> None:
        self._sets = sets
        self.max_users: int = max_users
        self._pairs = {limit_set: _UserAndAddress(limit_set, max_users) for limit_set in sets}
        self._by_priority = tuple(self._pair(each) for each in sets.by_priority)
        self._plain = sets.plain

    @property
    def users(self) -> int:
        """Users in the tables now."""
        return sum(len(window) for window in self._windows())

    @property
    def overflowed(self) -> int:
        """Decisions made on a shared account because a table was full of exhausted users."""
        return sum(window.overflowed for window in self._windows())

    def hit(self, demand: Demand, now: float) -> Decision | None:
        """Charge the demand, cost rounded up; None if no user limit applies to it."""
        pair = self._by_priority[demand.priority] if self._plain else self._choose(demand)
        if pair is None:
            return None
        cost = demand.cost
        units = 1 if cost <= 1.0 else math.ceil(cost)
        if not demand.address:
            return pair.users.hit(demand.user, units, now, demand.group)
        return _hit_both(pair, demand, units, now)

    def hit_within(
        self, demand: Demand, user: Part | None, address: Part | None, now: float
    ) -> Decision | None:
        """Charge as `hit`, using only a part of the user's or the address's limits.

        Args:
            demand: the demand to charge.
            user: the usable part of the user's limits; None: the full limits.
            address: the usable part of the address's limits.
            now: monotonic seconds.
        """
        pair = self._choose(demand)
        if pair is None or (user is None and address is None):
            return self.hit(demand, now)
        units = max(1, math.ceil(demand.cost))
        if demand.address:
            return _hit_both(pair, demand, units, now, (user, address))
        account = pair.users.find(demand.user, units, now, demand.group)
        decision = pair.users.test(account, units, now, user)
        if decision.allowed:
            pair.users.charge(account, units, now)
        return decision

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Refund, once, the charge of `hit` for the demand at the instant ``charged_at``.

        Returns:
            Whether all of it was found; False, too, if no user limit applies.
        """
        pair = self._by_priority[demand.priority] if self._plain else self._choose(demand)
        if pair is None:
            return False
        units, group = math.ceil(demand.cost), demand.group
        refunded = pair.users.give_back(demand.user, units, charged_at, now, group)
        if demand.address:
            refunded &= pair.addresses.give_back(demand.address, units, charged_at, now, group)
        return refunded

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        for window in self._windows():
            window.sweep(now, users)

    def resize(self, sets: LimitSets) -> None:
        """Apply limits of other sizes from now on; counted units stay.

        Args:
            sets: those this was made with, each limit with at most as many units as before.
        """
        self._pairs = dict(zip(sets, self._pairs.values(), strict=True))
        for limit_set, pair in self._pairs.items():
            pair.users.resize(limit_set.users)
            pair.addresses.resize(limit_set.addresses)
        self._sets = sets

    def _choose(self, demand: Demand) -> _UserAndAddress | None:
        return self._pair(self._sets.of(demand))

    def _pair(self, limit_set: LimitSet | None) -> _UserAndAddress | None:
        return None if limit_set is None else self._pairs[limit_set]

    def _windows(self) -> Iterator[SlidingWindow]:
        for pair in self._pairs.values():
            yield pair.users
            yield pair.addresses


def _hit_both(
    pair: _UserAndAddress,
    demand: Demand,
    units: int,
    now: float,
    within: tuple[Part | None, Part | None] = (None, None),
) -> Decision:
    """Charge a caller and its address, or neither; if both reject, the longer wait decides.

    An exhausted address adds no caller to the table:
    a host that invents keys must not evict other users.
    """
    users, addresses = pair.users, pair.addresses
    address_account = addresses.find(demand.address, units, now, demand.group)
    address = addresses.test(address_account, units, now, within[1])
    if address.allowed:
        account = users.find(demand.user, units, now, demand.group)
    else:
        account = users.peek(demand.user)
    user = users.test(account, units, now, within[0])
    if not (user.allowed and address.allowed):
        return user if user.retry_after_s >= address.retry_after_s else address
    users.charge(account, units, now)
    addresses.charge(address_account, units, now)
    user.others += address.limits
    return user


class _UserAndAddress:
    """The windows of one set of limits: for the users, and the wider one for their addresses."""

    __slots__ = ("addresses", "users")

    def __init__(self, limit_set: LimitSet, max_users: int) -> None:
        shared = max(1, int(max_users * NEIGHBOURHOODS_SHARE))
        users, addresses = limit_set.users, limit_set.addresses
        self.users = SlidingWindow(users, max_users, SlidingWindow(users, shared))
        self.addresses = SlidingWindow(addresses, max_users, SlidingWindow(addresses, shared))
