"""Decisions of one process alone, while the shared store of user limits gives none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoglm_throttle.limiting.user_limits import LimitSet, LimitSets, Part, UserLimits
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.last_known_remaining import LastKnownRemaining
from autoglm_throttle.store.user_limit_store import StoreErrorKind
from autoglm_throttle.types import EXACT_AT_MOST, Decision, Demand, Reason, StoreFailureMode, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings


@dataclass(frozen=True, slots=True)
class StoreNames:
    """Names of demands in the store."""

    sets: LimitSets
    """Selects the limits of a demand."""
    text_of: Callable[[str], str]
    """Makes an identity text from a user name."""
    kinds: dict[LimitSet, tuple[str, str]]
    """Names of each set's users and addresses."""

    @classmethod
    def of(cls, sets: LimitSets, text_of: Callable[[str], str]) -> StoreNames:
        """Return the names under these sets of limits."""
        return cls(sets, text_of, {limit_set: _kinds_of(limit_set.name) for limit_set in sets})


def _kinds_of(name: str) -> tuple[str, str]:
    return name, "address" if name == "user" else f"{name}-address"


class StoreFallback:
    """Decides by the failure mode: with the fair share of this process, always yes, or always no.

    Args:
        names: of demands in the store.
        settings: the failure mode.
        processes: number of processes that share the limits.
        max_users: capacity of the local table under each set of limits, and of the table of last answers.
    """

    def __init__(
        self,
        names: StoreNames,
        settings: StoreSettings,
        processes: Callable[[], int],
        max_users: int,
    ) -> None:
        self.last_known: LastKnownRemaining = LastKnownRemaining(max_users)
        """Units left at the store's last answers."""
        self.on_error: StoreFailureMode = settings.redis_on_error
        self.processes: Callable[[], int] = processes
        self.counts: dict[StoreErrorKind, int] = dict.fromkeys(StoreErrorKind, 0)
        """Decisions, by cause."""
        self.limits: UserLimits | None = None
        """Units counted here; None before the first local decision."""
        self.max_users: int = max_users
        self._names = names
        self._shared_by = 0

    def decide(self, demand: Demand, kind: StoreErrorKind, health: StoreHealth, now: float) -> Decision:
        """Decide on a demand because of an error of the store."""
        self.counts[kind] += 1
        if self.on_error is StoreFailureMode.ALLOW:
            return Decision(True, Reason.OK, f"store:{kind}")
        if self.on_error is StoreFailureMode.DENY:
            answers = health.state is HealthState.UP
            wait = 0.0 if answers else max(0.0, health.next_probe_s - now)
            return Decision(False, Reason.STORE, f"store:{kind}", "store", math.inf, 0.0, wait, wait)
        limits = self._fair_limits()
        decision = limits.hit_within(demand, *self._seed(demand, now), now)
        return decision if decision is not None else Decision(True, Reason.OK)

    def _fair_limits(self) -> UserLimits:
        """Return the local windows. When the share of this process changes, counted units stay."""
        sets, processes = self._names.sets, max(1, self.processes())
        if self.limits is None:
            self.limits = UserLimits(sets, self.max_users)
        if processes != self._shared_by:
            self._shared_by = processes
            self.limits.resize(sets.map(lambda limits: fair_share(limits, processes)))
        return self.limits

    def _seed(self, demand: Demand, now: float) -> tuple[Part | None, Part | None]:
        """Return the usable units of the user and its address: the share of the store's last known rest.

        Units counted here reduce it, as the store does not know them.
        """
        names, seed, shares = self._names, self.last_known.seed, self._shared_by
        limit_set = names.sets.of(demand)
        if limit_set is None:  # pragma: no cover - without a limit there is nothing to decide
            return None, None
        user_kind, address_kind = names.kinds[limit_set]
        user = seed(user_kind, names.text_of(demand.user), limit_set.users, shares, now)
        if not demand.address:
            return user, None
        return user, seed(address_kind, names.text_of(demand.address), limit_set.addresses, shares, now)


@dataclass(frozen=True, slots=True)
class ReducedLimit(UserLimit):
    """The part of a user limit that one process applies alone."""

    full_limit: int
    """Units of the whole limit, which decide on its layout."""

    @property
    def exact(self) -> bool:
        """Whether the whole limit is exact: a share keeps its layout with any number of processes."""
        return self.full_limit <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """Return the share of each of several processes; together they stay below limit + processes.

    Args:
        limits: the configured limits.
        processes: >= 1; for one, the limits stay as they are.
    """
    if processes <= 1:
        return limits
    return tuple(
        ReducedLimit(limit.name, -(-limit.limit // processes), limit.window_s, limit.limit)
        for limit in limits
    )
