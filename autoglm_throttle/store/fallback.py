"""Decisions of one process alone, while the shared store of user limits gives none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import StoreCharge, StoreErrorKind
from autoglm_throttle.types import EXACT_AT_MOST, Decision, Demand, Reason, StoreFailureMode, UserLimit

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings


class StoreFallback:
    """Decides by the failure mode: with the fair share of this process, always yes, or always no.

    ``processes()`` share the limits; ``max_users`` is the capacity of the table of last answers, and of the
    local table under each set of limits.
    """

    def __init__(
        self, sets: LimitSets, settings: StoreSettings, processes: Callable[[], int], max_users: int
    ) -> None:
        # Units left at the store's last answers.
        self.last_known: LastKnownRemaining = LastKnownRemaining(max_users)
        self.on_error: StoreFailureMode = settings.redis_on_error
        self.processes: Callable[[], int] = processes
        self.counts: dict[StoreErrorKind, int] = dict.fromkeys(StoreErrorKind, 0)  # Decisions, by cause
        self.limits: UserLimits = UserLimits(sets, max_users)  # Units counted here
        self._sets = sets
        self._shared_by = 0

    def decide(
        self,
        demand: Demand,
        charges: Sequence[StoreCharge],
        kind: StoreErrorKind,
        health: StoreHealth,
        now: float,
    ) -> Decision:
        """Decide on a demand and its charges of a user and address, because of an error of the store."""
        self.counts[kind] += 1
        if self.on_error is StoreFailureMode.ALLOW:
            return Decision(True, Reason.OK, f"store:{kind}")
        if self.on_error is StoreFailureMode.DENY:
            answers = health.state is HealthState.UP
            wait = 0.0 if answers else max(0.0, health.next_probe_s - now)
            return Decision(False, Reason.STORE, f"store:{kind}", "store", math.inf, 0.0, wait, wait)
        limits = self._fair_limits()
        # Units counted here reduce the last known rest, as the store does not know them.
        user, address = (
            *(self.last_known.seed(c.kind, c.user, c.limits, self._shared_by, now) for c in charges),
            None,
        )[:2]
        decision = limits.hit_within(demand, user, address, now)
        return decision if decision is not None else Decision(True, Reason.OK)

    def _fair_limits(self) -> UserLimits:
        """Return the local windows. When the share of this process changes, counted units stay."""
        processes = max(1, self.processes())
        if processes != self._shared_by:
            self._shared_by = processes
            self.limits.resize(self._sets.map(lambda limits: fair_share(limits, processes)))
        return self.limits


class LastKnownRemaining:
    """Units left of each user at the store's newest answers.

    A user that had used up most of a limit begins an outage with its share of the rest. Answers are stored in
    two halves; when the young half is full it replaces the old one. So the last ``size / 2`` users are always
    present, at most ``size``, and a record is one dictionary write. With one limit a user takes some 220
    bytes, and 30 to 60 more for each further limit.
    """

    def __init__(self, size: int) -> None:
        self.size: int = size  # Most users stored, of all kinds together; >= 2
        self._young: dict[str, tuple[float, ...]] = {}
        self._old: dict[str, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def record(self, kind: str, user: str, remaining: tuple[int, ...], now: float) -> None:
        """Store the units left of each limit of the set ``kind``, for the identity text ``user``."""
        young = self._young
        # All identity texts are equally long, so that a user and a kind join without ambiguity.
        young[user + kind] = (now, *remaining)
        # Two halves instead of an order of use: a list of uses would cost half as much memory again.
        if len(young) >= self.size // 2:
            self._old, self._young = young, {}

    def seed(
        self, kind: str, user: str, limits: tuple[UserLimit, ...], processes: int, now: float
    ) -> tuple[int, ...] | None:
        """Return the units that one of several processes may give a user: its part of the rest, rounded down.

        A limit with a window that has passed since then is whole again: its part is the fair share. None if
        the user was not recorded within any of the windows.
        """
        key = user + kind
        entry = self._young.get(key) or self._old.get(key)
        if entry is None:
            return None
        age_s = now - entry[0]
        if age_s >= max(limit.window_s for limit in limits):
            return None
        return tuple(
            int(left) // processes if age_s < limit.window_s else -(-limit.limit // processes)
            for limit, left in zip(limits, entry[1:], strict=True)
        )


@dataclass(frozen=True, slots=True)
class ReducedLimit(UserLimit):
    """The part of a user limit that one process applies alone."""

    full_limit: int  # Units of the whole limit, which decide on its layout

    @property
    def exact(self) -> bool:
        """Whether the whole limit is exact: a share keeps its layout with any number of processes."""
        return self.full_limit <= EXACT_AT_MOST


def fair_share(limits: tuple[UserLimit, ...], processes: int) -> tuple[UserLimit, ...]:
    """Return the share of each of several processes; together they stay below limit + processes."""
    if processes <= 1:
        return limits
    return tuple(
        ReducedLimit(limit.name, -(-limit.limit // processes), limit.window_s, limit.limit)
        for limit in limits
    )
