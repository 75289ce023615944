"""User limits shared through a store: local deny cache, store check, fallback when it is unavailable.

Everything here is used under the lock of the throttle, except `PendingCheck.send`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autoglm_throttle.store.decisions import (
    caller_decision,
    combined,
    limit_decision,
    remaining_units,
)
from autoglm_throttle.store.deny_cache import DenyCache
from autoglm_throttle.store.fallback import StoreFallback, StoreNames
from autoglm_throttle.store.health import HealthChange, HealthState, StoreHealth
from autoglm_throttle.store.pending_check import PendingCheck
from autoglm_throttle.store.user_limit_store import (
    VALUES,
    Answer,
    StoreCharge,
    StoreErrorKind,
    StoreStats,
    UserLimitStore,
)
from autoglm_throttle.types import Decision, Demand, StoreFailureMode

if TYPE_CHECKING:
    from autoglm_throttle.settings.groups.store import StoreSettings

UNREACHABLE_ERRORS: Final = frozenset(
    {StoreErrorKind.TIMEOUT, StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}
)
"""Errors that other users of the same server would meet, too; the others may be ours alone."""


def _ignore_loss(now: float) -> None:  # noqa: ARG001 - a listener's interface
    return None


@dataclass(frozen=True, slots=True)
class StoreView:
    """The shared store at one moment. Counters only grow."""

    kind: str
    state: HealthState
    cause: StoreErrorKind | None
    """Cause of the outage; None while the store answers."""
    since_s: float
    """Monotonic time at which it entered this state."""
    on_error: StoreFailureMode
    processes: int
    """Processes that share the limits, as far as is known here."""
    fallbacks: dict[StoreErrorKind, int]
    """Decisions without the store, by cause."""
    deny_cache_hits: int
    """Denials from the local cache, without a check of the store."""
    stats: StoreStats


class SharedUserLimits:
    """User limits in a store that several processes share.

    Args:
        names: select the limits of a demand, and name it in the store.
        store: counts the units.
        settings: the failure mode, the limits of failures and probes, and the size of the deny cache.
        processes: number of processes that share the limits: each applies its fair share while the store is
            unavailable.
        max_users: capacity of the local table under each set of limits, meanwhile.
        is_usable: whether the store's client can run in the current context: in an asyncio loop.
    """

    def __init__(
        self,
        names: StoreNames,
        store: UserLimitStore,
        settings: StoreSettings,
        *,
        processes: Callable[[], int],
        max_users: int,
        is_usable: Callable[[], bool],
    ) -> None:
        self.store: UserLimitStore = store
        self.store_health: StoreHealth = StoreHealth(settings.redis_failures, (settings.redis_probe_s,))
        self.changes: list[HealthChange] = []
        """Changes of the store's state, for the log."""
        self.probe_due: bool = False
        """Whether a caller with an event loop should probe the store."""
        self.on_store_lost: Callable[[float], None] = _ignore_loss
        """Called under the lock when the store is lost, for other users of the same server."""
        self._names = names
        self.deny_cache: DenyCache = DenyCache(settings)
        self.fallback: StoreFallback = StoreFallback(names, settings, processes, max_users)
        self.is_usable: Callable[[], bool] = is_usable

    def hit(self, demand: Demand, now: float) -> Decision | PendingCheck | None:
        """Decide without the store, or return a `PendingCheck` to send. None if no user limit applies."""
        names = self._names
        limit_set = names.sets.of(demand)
        if limit_set is None:
            return None
        units = 1 if demand.cost <= 1.0 else math.ceil(demand.cost)
        user = names.text_of(demand.user)
        address = names.text_of(demand.address) if demand.address else ""
        key = (limit_set.name, user, address, units)
        known = self.deny_cache.find(key, now)
        if known is not None:
            return known
        if self.store_health.state is not HealthState.UP:
            if self.is_usable():
                self.poll(now)
            return self._decide_without_store(
                demand, self.store_health.cause or StoreErrorKind.UNREACHABLE, now
            )
        if not self.is_usable():
            return self._decide_without_store(demand, StoreErrorKind.LOOP, now)
        user_kind, address_kind = names.kinds[limit_set]
        charge = StoreCharge(user_kind, limit_set.users, user, units)
        if not address:
            return PendingCheck(self, demand, key, (charge,), now)
        return PendingCheck(
            self, demand, key, (charge, StoreCharge(address_kind, limit_set.addresses, address, units)), now
        )

    def give_back(self, demand: Demand, charged_at: float, now: float) -> bool:
        """Refund a local charge, without the store."""
        limits = self.fallback.limits
        return limits is not None and limits.give_back(demand, charged_at, now)

    def poll(self, now: float) -> None:
        """Request a probe if one is due."""
        if self.store_health.try_begin_probe(now):
            self.probe_due = True

    def report_failure(self, now: float) -> None:
        """Decide locally until a probe ends, after another user's timeout. Idempotent."""
        if self.store_health.report_failure(now):
            self.probe_due = True

    def on_result(self, kind: StoreErrorKind | None, now: float) -> None:
        """Record the result of a round trip."""
        self._record_change(self.store_health.record_result(kind, now))

    def on_probe_result(self, kind: StoreErrorKind | None, now: float) -> None:
        """Record the result of a probe."""
        self._record_change(self.store_health.record_probe(kind, now))

    def view(self) -> StoreView:
        """Return the state of the store."""
        store_health, fallback = self.store_health, self.fallback
        return StoreView(
            kind=self.store.kind,
            state=store_health.state,
            cause=store_health.cause,
            since_s=store_health.since_s,
            on_error=fallback.on_error,
            processes=fallback.processes(),
            fallbacks=fallback.counts.copy(),
            deny_cache_hits=self.deny_cache.hits,
            stats=self.store.stats(),
        )

    @property
    def users(self) -> int:
        """Users counted here during outages of the store."""
        return self.fallback.limits.users if self.fallback.limits is not None else 0

    @property
    def overflowed(self) -> int:
        """Decisions taken on a shared log because the table here was full of exhausted users."""
        return self.fallback.limits.overflowed if self.fallback.limits is not None else 0

    def sweep(self, now: float, users: int) -> None:
        """Evict idle users among the next ``users`` of each table."""
        if self.fallback.limits is not None:
            self.fallback.limits.sweep(now, users)

    def resolve(self, check: PendingCheck, answer: Answer | StoreErrorKind, now: float) -> Decision:
        """Decide on a check, with the store's answer or without."""
        if isinstance(answer, StoreErrorKind):
            return self._decide_unanswered(check, answer, now)
        result = self._to_decision(check.charges, answer, now)
        if result.allowed:
            check.answer = answer
        else:
            self.deny_cache.put(check.key, result, check.sent_s, now)
        return result

    def _to_decision(self, charges: Sequence[StoreCharge], answer: Answer, now: float) -> Decision:
        """Convert an answer to a decision on a user, or on a user and its address."""
        charge, record = charges[0], self.fallback.last_known.record
        if len(answer) == VALUES:
            ok, remaining, retry_us, reset_us, _ = answer
            record(charge.kind, charge.user, (remaining,), now)
            return limit_decision(charge.limits[0], ok, remaining, retry_us, reset_us)
        user = caller_decision(charge, answer)
        record(charge.kind, charge.user, remaining_units(charge.limits, user), now)
        if len(charges) == 1:
            return user
        charge = charges[1]
        address = caller_decision(charge, answer[VALUES * len(charges[0].limits) :])
        record(charge.kind, charge.user, remaining_units(charge.limits, address), now)
        return combined(user, address)

    def undo(self, check: PendingCheck, now: float) -> None:
        """Refund, once, all units of a check."""
        answer, check.answer = check.answer, None
        charged_s, check.charged_s = check.charged_s, None
        if answer is not None:
            self.deny_cache.remove(check.key)
            self.store.give_back(check.charges, answer)
        elif charged_s is not None:
            self.give_back(check.demand, charged_s, now)

    def _record_change(self, change: HealthChange | None) -> None:
        if change is None:
            return
        self.changes.append(change)
        if change.state is HealthState.DOWN:
            self.store.disconnect()
            if change.error_kind in UNREACHABLE_ERRORS:
                self.on_store_lost(change.at_s)

    def _decide_unanswered(self, check: PendingCheck, kind: StoreErrorKind, now: float) -> Decision:
        decision = self._decide_without_store(check.demand, kind, now)
        if decision.allowed:
            check.charged_s = now
        return decision

    def _decide_without_store(self, demand: Demand, kind: StoreErrorKind, now: float) -> Decision:
        """Decide in this process alone."""
        return self.fallback.decide(demand, kind, self.store_health, now)
