"""User limits in memory: units of users and addresses, tested and charged all or none.

`limit_sets` selects the limits of a demand; each set counts for itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from autoglm_throttle.limiting.decisions import Usages
from autoglm_throttle.limiting.log_window import Account
from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.types import UNITS_AT_MOST, Decision, Demand, Priority, UserLimit

Limits = tuple[UserLimit, ...]
Part = Sequence[int]  # Usable units of each limit of a set, in their order
UserAndAddress = tuple[SlidingWindow, SlidingWindow]  # Windows of one set: of the users, of their addresses
NO_LIMIT: Usages = ()  # Verdict on a demand to which no user limit applies
NO_PARTS: Mapping[str, Part | None] = {}  # All limits are usable in full
NEIGHBOURHOODS_SHARE = 0.1  # Capacity for neighbourhoods of new users, as a share of ``max_users``


class UserLimits:
    """All user limits of a service, kept in memory."""

    def __init__(self, sets: LimitSets, max_users: int) -> None:
        self._sets = sets
        self.max_users: int = max_users  # Capacity of the user table under each set of limits
        self._pairs = {
            limit_set: (_window(limit_set.users, max_users), _window(limit_set.addresses, max_users))
            for limit_set in sets
        }
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

    def hit(self, demand: Demand, now: float) -> Usages | Decision:
        """Charge the demand, cost rounded up; empty if no user limit applies to it."""
        pair = self._by_priority[demand.rank] if self._plain else self._choose(demand)
        if pair is None:
            return NO_LIMIT
        cost = demand.cost
        units = 1 if cost <= 1.0 else math.ceil(cost)
        if demand.address:
            return _hit_both(pair, demand, units, now)
        users = pair[0]
        try:  # in half the time of `get`
            account = users.accounts[demand.user]
        except KeyError:
            account = _new_account(users, demand.user, demand, units, now)
        hit = users.hit  # no method: called in two steps it takes half the time
        return hit(account, units, now)

    def hit_units(
        self, demand: Demand, units: int, now: float, parts: Mapping[str, Part | None] = NO_PARTS
    ) -> Usages | Decision:
        """Charge as `hit`, but so many units in place of the cost, using only a part of the limits.

        Args:
            demand: the one that is charged.
            units: units of the charge.
            now: the present time.
            parts: usable units of each limit, by name of the set; missing or None: the full limits.
        """
        pair = self._by_priority[demand.rank] if self._plain else self._choose(demand)
        if pair is None:
            return NO_LIMIT
        users, within = pair[0], None
        if parts and (limit_set := self._sets.of(demand)) is not None:
            within = parts.get(limit_set.name), parts.get(limit_set.address_name)
        if demand.address:
            return _hit_both(pair, demand, units, now, within)
        try:
            account = users.accounts[demand.user]
        except KeyError:
            account = _new_account(users, demand.user, demand, units, now)
        if within is None:
            hit = users.hit  # no method: called in two steps it takes half the time
            return hit(account, units, now)
        return _hit(users, account, units, now, within[0])

    def charge(self, demand: Demand, units: int, now: float) -> None:
        """Charge so many units, which have been used already: above the limits as well."""
        pair = self._choose(demand) if units > 0 else None
        if pair is None:
            return
        users, addresses = pair
        users.charge_over(_account(users, demand.user, demand, 1, now), units, now)
        if demand.address:
            addresses.charge_over(_account(addresses, demand.address, demand, 1, now), units, now)

    def give_back(self, demand: Demand, charged_at: float, now: float, units: int | None = None) -> bool:
        """Refund, once, a charge at ``charged_at``; return whether all of it was found.

        Args:
            demand: the one that was charged.
            charged_at: when it was.
            now: the present time.
            units: units of the charge; None: those of `hit`.
        """
        pair = self._by_priority[demand.rank] if self._plain else self._choose(demand)
        if pair is None:
            return False
        if units is None:
            units = math.ceil(demand.cost)
        users, addresses = pair
        refunded = _give_back(users, demand.user, demand, units, charged_at, now)
        if demand.address:
            refunded &= _give_back(addresses, demand.address, demand, units, charged_at, now)
        return refunded

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        for window in self._windows():
            window.sweep(now, users)

    def resize(self, sets: LimitSets) -> None:
        """Apply the same sets with limits of at most as many units from now on; counted units stay."""
        self._pairs = dict(zip(sets, self._pairs.values(), strict=True))
        for limit_set, (users, addresses) in self._pairs.items():
            users.resize(limit_set.users)
            addresses.resize(limit_set.addresses)
        self._sets = sets

    def _choose(self, demand: Demand) -> UserAndAddress | None:
        return self._pair(self._sets.of(demand))

    def _pair(self, limit_set: LimitSet | None) -> UserAndAddress | None:
        return None if limit_set is None else self._pairs[limit_set]

    def _windows(self) -> Iterator[SlidingWindow]:
        return chain.from_iterable(self._pairs.values())


def _window(limits: Limits, max_users: int) -> SlidingWindow:
    shared = max(1, int(max_users * NEIGHBOURHOODS_SHARE))
    return SlidingWindow(limits, max_users, SlidingWindow(limits, shared))


def _new_account(window: SlidingWindow, user: str, demand: Demand, units: int, now: float) -> Account:
    account = window.new_account(user, units, now)
    # The network of a caller is computed only here.
    return account if account is not None else window.shared_account(demand.group, units, now)


def _account(window: SlidingWindow, user: str, demand: Demand, units: int, now: float) -> Account:
    account = window.accounts.get(user)
    return _new_account(window, user, demand, units, now) if account is None else account


def _give_back(
    window: SlidingWindow, user: str, demand: Demand, units: int, charged_at: float, now: float
) -> bool:
    found = window.give_back(user, units, charged_at, now)
    return found or window.give_back_shared(demand.group, units, charged_at, now)


def _test(
    window: SlidingWindow, account: Account, units: int, now: float, part: Part | None
) -> Usages | Decision:
    if part is None:
        return window.test(account, units, now)
    return window.test_within(account, units, now, part)


def _hit(
    window: SlidingWindow, account: Account, units: int, now: float, part: Part | None
) -> Usages | Decision:
    verdict = _test(window, account, units, now, part)
    if isinstance(verdict, tuple):
        window.charge(account, units, now)
    return verdict


def _hit_both(
    pair: UserAndAddress,
    demand: Demand,
    units: int,
    now: float,
    parts: tuple[Part | None, Part | None] | None = None,
) -> Usages | Decision:
    """Charge a caller and its address, or neither; if both reject, the longer wait decides.

    An exhausted address adds no caller to the table:
    a host that invents keys must not evict other users.
    """
    users, addresses = pair
    try:
        at = addresses.accounts[demand.address]
    except KeyError:
        at = _new_account(addresses, demand.address, demand, units, now)
    address = addresses.test(at, units, now) if parts is None else _test(addresses, at, units, now, parts[1])
    if isinstance(address, Decision):
        user = _test(users, users.peek(demand.user), units, now, None if parts is None else parts[0])
        return user if isinstance(user, Decision) and user.retry_after_s >= address.retry_after_s else address
    try:
        account = users.accounts[demand.user]
    except KeyError:
        account = _new_account(users, demand.user, demand, units, now)
    user = users.hit(account, units, now) if parts is None else _hit(users, account, units, now, parts[0])
    if isinstance(user, Decision):
        return user
    addresses.charge(at, units, now)
    return user + address


@dataclass(frozen=True, slots=True, eq=False)
class LimitSet:
    """Limits that are counted together: those of a user and the wider ones of an address."""

    name: str  # Name of the set in a shared store: ``user``, ``user-low``, ``plan-gold``
    users: Limits
    addresses: Limits

    @property
    def address_name(self) -> str:
        """Name of the addresses' limits in a shared store."""
        return "address" if self.name == "user" else f"{self.name}-address"


class LimitSets:
    """All sets of user limits of a service.

    Args:
        by_priority: limits for high, mid and low requests; an empty tuple means no limit.
            Priorities with equal limits share one set.
        by_plan: limits by name of plan; None means the plan has none of its own, empty that it lifts them.
        by_route: the same by name of route policy.
        address_factor: how many times a user's limit one address may take, >= 1.
        prefix: beginning of the names of the sets, for limits of other units than requests.
    """

    def __init__(
        self,
        by_priority: Sequence[Limits],
        *,
        by_plan: Mapping[str, Limits | None],
        by_route: Mapping[str, Limits | None],
        address_factor: float,
        prefix: str = "",
    ) -> None:
        self._factor = address_factor
        self._prefix = prefix
        by_limits = {limits: self._set(_group(limits, by_priority), limits) for limits in by_priority}
        self.by_priority: tuple[LimitSet | None, ...] = tuple(by_limits[limits] for limits in by_priority)
        self.by_plan: dict[str, LimitSet | None] = self._named("plan", by_plan)
        self.by_route: dict[str, LimitSet | None] = self._named("route", by_route)
        self.plain: bool = not (self.by_plan or self.by_route)  # Whether the priority alone decides

    def __iter__(self) -> Iterator[LimitSet]:
        sets = [*self.by_priority, *self.by_plan.values(), *self.by_route.values()]
        return (limit_set for limit_set in dict.fromkeys(sets) if limit_set is not None)

    def of(self, demand: Demand) -> LimitSet | None:
        """Return the set that applies to the demand; None if no user limit does."""
        if not self.plain:
            if demand.route in self.by_route:
                return self.by_route[demand.route]
            if demand.plan in self.by_plan:
                return self.by_plan[demand.plan]
        return self.by_priority[demand.rank]

    def map(self, change: Callable[[Limits], Limits]) -> LimitSets:
        """Return the same sets with other limits, for users and addresses alike."""
        changed = {each: LimitSet(each.name, change(each.users), change(each.addresses)) for each in self}
        other = copy.copy(self)
        other.by_priority = tuple(each and changed[each] for each in self.by_priority)
        other.by_plan = {name: each and changed[each] for name, each in self.by_plan.items()}
        other.by_route = {name: each and changed[each] for name, each in self.by_route.items()}
        return other

    def _named(self, kind: str, limits: Mapping[str, Limits | None]) -> dict[str, LimitSet | None]:
        return {name: self._set(f"{kind}-{name}", own) for name, own in limits.items() if own is not None}

    def _set(self, name: str, limits: Limits) -> LimitSet | None:
        if not limits:
            return None
        addresses = []
        for limit in limits:
            units = min(math.ceil(limit.limit * self._factor), UNITS_AT_MOST)
            wider = f"address-{limit.name.removeprefix('user-')}"
            addresses.append(replace(limit, name=wider, limit=units))
        return LimitSet(self._prefix + name, limits, tuple(addresses))


def _group(limits: Limits, by_priority: Sequence[Limits]) -> str:
    """``user`` for the set of mid: a limit for another priority alone leaves its counts where they are."""
    if limits == by_priority[Priority.MID]:
        return "user"
    return "-".join(["user", *(p.label for p in Priority if by_priority[p] == limits)])
