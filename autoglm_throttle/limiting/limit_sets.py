"""Which user limits a demand is held to.

The limit of the request's route replaces that of the caller's plan, which replaces that of its priority,
which replaces the general one. Each set of limits counts for itself.
An unverified caller is held to its address as well, at a multiple of the same limits,
so that inventing keys does not multiply what one host may take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoglm_throttle.model import Demand, Priority, UserLimit

Limits = tuple[UserLimit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LimitSet:
    """Limits that are counted together: those of a user and the wider ones of an address."""

    name: str
    """What tells the set from others in a shared store: ``user``, ``user-low``, ``plan-gold``, ``route-chat``."""
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
        self._by_plan = {n: self._set(f"plan-{n}", own) for n, own in by_plan.items() if own is not None}
        self._by_route = {n: self._set(f"route-{n}", own) for n, own in by_route.items() if own is not None}
        self.plain: bool = not (self._by_plan or self._by_route)
        """Whether the priority alone decides."""

    def __iter__(self) -> Iterator[LimitSet]:
        sets = [*self.by_priority, *self._by_plan.values(), *self._by_route.values()]
        return (limit_set for limit_set in dict.fromkeys(sets) if limit_set is not None)

    def of(self, demand: Demand) -> LimitSet | None:
        """The set that the demand is held to; None if no user limit applies to it."""
        if not self.plain:
            if demand.route in self._by_route:
                return self._by_route[demand.route]
            if demand.plan in self._by_plan:
                return self._by_plan[demand.plan]
        return self.by_priority[demand.priority]

    def _set(self, name: str, limits: Limits) -> LimitSet | None:
        if not limits:
            return None
        wide = (
            UserLimit(f"address-{limit.window_s}s", math.ceil(limit.limit * self._factor), limit.window_s)
            for limit in limits
        )
        return LimitSet(name, limits, tuple(wide))


def _group(limits: Limits, by_priority: Sequence[Limits]) -> str:
    """``user`` for the set of mid, so that a limit for another priority alone leaves its counts where they are."""
    if limits == by_priority[Priority.MID]:
        return "user"
    return "-".join(["user", *(p.label for p in Priority if by_priority[p] == limits)])
