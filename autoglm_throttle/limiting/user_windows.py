"""Which user limits a demand is held to, checked and spent all or none.

The limit of the request's route replaces that of the caller's plan, which replaces that of its priority,
which replaces the general one. Each set of limits counts for itself.
An unverified caller is held to its address as well, at a multiple of the same limits,
so that inventing keys does not multiply what one host may take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.model import Decision, Demand, UserLimit

NEIGHBOURHOODS_SHARE = 0.1
"""Neighbourhoods remembered for newcomers without room, as a share of ``max_users``."""

Limits = tuple[UserLimit, ...]


class UserWindows:
    """All user limits of a service, kept in memory.

    Args:
        by_priority: limits for high, mid and low requests; an empty tuple means no limit.
        by_plan: limits by name of plan; None means the plan has none of its own, empty that it lifts them.
        by_route: the same by name of route policy.
        address_factor: how many times a user's limit one address may take, >= 1.
        max_users: most users remembered under each set of limits.
    """

    def __init__(
        self,
        by_priority: Sequence[Limits],
        *,
        by_plan: Mapping[str, Limits | None],
        by_route: Mapping[str, Limits | None],
        address_factor: float,
        max_users: int,
    ) -> None:
        self._max_users = max_users
        self._factor = address_factor
        by_limits = {limits: self._pair(limits) for limits in by_priority}
        self._by_priority = tuple(by_limits[limits] for limits in by_priority)
        self._by_plan = {name: self._pair(own) for name, own in by_plan.items() if own is not None}
        self._by_route = {name: self._pair(own) for name, own in by_route.items() if own is not None}
        self._plain = not (self._by_plan or self._by_route)

    @property
    def users(self) -> int:
        """Users remembered now."""
        return sum(len(window) for window in self._windows())

    @property
    def overflowed(self) -> int:
        """Decisions taken on a shared log because a table was full of exhausted users."""
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

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Take back, once, what `hit` charged for the demand at the instant ``charged_at``.

        Returns:
            Whether all of it was found; False, too, if no user limit applies.
        """
        pair = self._by_priority[demand.priority] if self._plain else self._choose(demand)
        if pair is None:
            return False
        units, group = math.ceil(demand.cost), demand.group
        given = pair.users.give_back(demand.user, units, charged_at, now, group)
        if demand.address:
            given &= pair.addresses.give_back(demand.address, units, charged_at, now, group)
        return given

    def sweep(self, now: float, users: int) -> None:
        """Forget idle users among the next ``users`` of each table."""
        for window in self._windows():
            window.sweep(now, users)

    def mend(self) -> None:
        """Make every table whole again, as after a fork in the midst of a change."""
        for window in self._windows():
            window.mend()

    def _choose(self, demand: Demand) -> _Pair | None:
        if demand.route in self._by_route:
            return self._by_route[demand.route]
        if demand.plan in self._by_plan:
            return self._by_plan[demand.plan]
        return self._by_priority[demand.priority]

    def _pair(self, limits: Limits) -> _Pair | None:
        return _Pair(limits, self._factor, self._max_users) if limits else None

    def _windows(self) -> Iterator[SlidingWindow]:
        pairs = [*self._by_priority, *self._by_plan.values(), *self._by_route.values()]
        for pair in dict.fromkeys(pairs):
            if pair is not None:
                yield pair.users
                yield pair.addresses


def _hit_both(pair: _Pair, demand: Demand, units: int, now: float) -> Decision:
    """Charge a caller and its address, or neither; of two refusals the longer one counts.

    No room is made for a caller at an exhausted address:
    a host that invents keys must not push others out of the table.
    """
    users, addresses = pair.users, pair.addresses
    address_log = addresses.find(demand.address, units, now, demand.group)
    address = addresses.judge(address_log, units, now)
    log = users.find(demand.user, units, now, demand.group) if address.allowed else users.peek(demand.user)
    user = users.judge(log, units, now)
    if not (user.allowed and address.allowed):
        return user if user.retry_after_s >= address.retry_after_s else address
    users.spend(log, units, now)
    addresses.spend(address_log, units, now)
    user.others += address.items
    return user


class _Pair:
    """The windows of one set of limits: that of the users and the wider one of their addresses."""

    __slots__ = ("addresses", "users")

    def __init__(self, limits: Limits, factor: float, max_users: int) -> None:
        shared = max(1, int(max_users * NEIGHBOURHOODS_SHARE))
        wide = tuple(
            UserLimit(f"address-{limit.window_s}s", math.ceil(limit.limit * factor), limit.window_s)
            for limit in limits
        )
        self.users = SlidingWindow(limits, max_users, SlidingWindow(limits, shared))
        self.addresses = SlidingWindow(wide, max_users, SlidingWindow(wide, shared))
