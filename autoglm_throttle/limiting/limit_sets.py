"""Selects the user limits of a demand.

The limit of the request's route replaces that of the caller's plan, which replaces that of its priority,
which replaces the general one. Each set of limits counts for itself.
An unverified caller is limited by its address as well, at a multiple of the same limits.
Otherwise a host could multiply its limit by inventing keys.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoglm_throttle.types import UNITS_AT_MOST, Demand, Priority, UserLimit

Limits = tuple[UserLimit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LimitSet:
    """Limits that are counted together: those of a user and the wider ones of an address."""

    name: str
    """Name of the set in a shared store: ``user``, ``user-low``, ``plan-gold``."""
    users: Limits
    addresses: Limits


class LimitSets:
    """All sets of user limits of a service.

    Args:
        by_priority: limits for high, mid and low requests; an empty tuple means no limit.
            Priorities with equal limits share one set.
        by_plan: limits by name of plan; None means the plan has none of its own, empty that it lifts them.
        by_route: the same by name of route policy.
        address_factor: how many times a user's limit one address may take, >= 1.
    """

    def __init__(
        self,
        by_priority: Sequence[Limits],
        *,
        by_plan: Mapping[str, Limits | None],
        by_route: Mapping[str, Limits | None],
        address_factor: float,
    ) -> None:
        self._factor = address_factor
        by_limits = {limits: self._set(_group(limits, by_priority), limits) for limits in by_priority}
        self.by_priority: tuple[LimitSet | None, ...] = tuple(by_limits[limits] for limits in by_priority)
        self.by_plan: dict[str, LimitSet | None] = self._named("plan", by_plan)
        self.by_route: dict[str, LimitSet | None] = self._named("route", by_route)
        self.plain: bool = not (self.by_plan or self.by_route)
        """Whether the priority alone decides."""

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
        return self.by_priority[demand.priority]

    def map(self, change: Callable[[Limits], Limits]) -> LimitSets:
        """Return the same sets with other limits, for users and addresses alike."""
        changed: dict[LimitSet | None, LimitSet | None] = {
            each: LimitSet(each.name, change(each.users), change(each.addresses)) for each in self
        }
        changed[None] = None
        other = copy.copy(self)
        other.by_priority = tuple(changed[each] for each in self.by_priority)
        other.by_plan = {name: changed[each] for name, each in self.by_plan.items()}
        other.by_route = {name: changed[each] for name, each in self.by_route.items()}
        return other

    def _named(self, kind: str, limits: Mapping[str, Limits | None]) -> dict[str, LimitSet | None]:
        return {name: self._set(f"{kind}-{name}", own) for name, own in limits.items() if own is not None}

    def _set(self, name: str, limits: Limits) -> LimitSet | None:
        if not limits:
            return None
        return LimitSet(name, limits, tuple(_wide(limit, self._factor) for limit in limits))


def _wide(limit: UserLimit, factor: float) -> UserLimit:
    units = min(math.ceil(limit.limit * factor), UNITS_AT_MOST)
    return UserLimit(f"address-{limit.window_s}s", units, limit.window_s)


def _group(limits: Limits, by_priority: Sequence[Limits]) -> str:
    """``user`` for the set of mid: a limit for another priority alone leaves its counts where they are."""
    if limits == by_priority[Priority.MID]:
        return "user"
    return "-".join(["user", *(p.label for p in Priority if by_priority[p] == limits)])
