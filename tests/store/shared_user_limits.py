"""User limits on a scripted store, and realistic answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.ticket import TicketCharges
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.limiting.user_slots import SlottedUserLimits
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.fallback import StoreFallback
from autoglm_throttle.store.health import HealthState, StoreHealth
from autoglm_throttle.store.protocol import Answer, StoreErrorKind, WindowEntry
from autoglm_throttle.store.shared_limits import SharedUserLimits
from autoglm_throttle.types import (
    CONCURRENCY,
    SLOT_HOLD_S,
    Decision,
    Demand,
    SlotLimit,
    StoreFailureMode,
    UserLimit,
)
from tests.store.scripted_store import ScriptedStore

MINUTE = UserLimit("user-60s", 10, 60)
SECOND = UserLimit("user-1s", 3, 1)
MAX_USERS = 100
ALICE = Demand(user="a" * 16)
BOB = Demand(user="b" * 16)


class Question:
    """A check that waits for its answer."""

    def __init__(self, windows: SharedUserLimits, demand: Demand, entry: WindowEntry, now: float) -> None:
        self.windows = windows
        self.demand = demand
        self.entry = entry
        self.charges = TicketCharges(None, None, charged_s=now)
        self.charges.pending_check = entry

    def resolve(self, answer: Answer | StoreErrorKind, now: float) -> Decision:
        return decision_of(self.windows.resolve(self.demand, self.charges, answer, now))

    def undo(self, now: float) -> None:
        self.windows.refund(self.demand, self.charges, now)


class Shared:
    """Windows on a scripted store, and the questions they have put."""

    def __init__(
        self,
        *limits: UserLimit,
        on_error: StoreFailureMode = StoreFailureMode.LOCAL,
        processes: int = 1,
        failures: int = 3,
        plans: dict[str, tuple[UserLimit, ...] | None] | None = None,
        slots: int = 0,
    ) -> None:
        self.store = ScriptedStore()
        self.processes = processes
        self.askable = True
        sets = LimitSets([limits] * 3, by_plan=plans or {}, by_route={}, address_factor=2.0)
        settings = StoreSettings(redis_on_error=on_error, redis_failures=failures)
        store: Any = self.store
        local = UserLimits(sets, MAX_USERS)
        if slots:
            (of_users,) = LimitSets(
                [(SlotLimit(CONCURRENCY, slots, SLOT_HOLD_S),)] * 3,
                by_plan={},
                by_route={},
                address_factor=2.0,
                prefix="concurrency.",
            )
            local = SlottedUserLimits(sets, MAX_USERS, of_users)
        fallback = StoreFallback(sets, settings, local, lambda: self.processes)
        self.windows = SharedUserLimits(
            lambda text: text, store, settings, fallback, SerialLock(), lambda: 0.0
        )
        self.windows.is_usable = lambda: self.askable
        self.windows.store_health = StoreHealth(failures, (settings.redis_probe_s,), jitter=lambda: 1.0)

    def question(self, demand: Demand, now: float) -> Question:
        found = self.windows.hit(demand, now)
        assert isinstance(found, WindowEntry)
        return Question(self.windows, demand, found, now)

    def hit(self, demand: Demand, now: float, answer: Answer | StoreErrorKind) -> Decision:
        """The result of a demand if the store must be asked, and answers so."""
        return self.question(demand, now).resolve(answer, now)

    def known(self, demand: Demand, now: float) -> Decision:
        """The result of a demand without a check of the store."""
        found = self.windows.hit(demand, now)
        assert isinstance(found, Decision)
        return found

    def probe_due(self) -> bool:
        return self.windows.probe_due

    def end_call(self, error: StoreErrorKind | None, now: float) -> None:
        self.windows.record_change(self.windows.store_health.record_result(error, now), now)

    def end_probe(self, error: StoreErrorKind | None, now: float) -> None:
        self.windows.record_change(self.windows.store_health.record_probe(error, now), now)

    def lose(self, now: float) -> None:
        self.end_call(StoreErrorKind.UNREACHABLE, now)
        assert self.windows.store_health.state is HealthState.DOWN


def numbers(decision: Decision) -> tuple[object, ...]:
    return decision.allowed, decision.reason, decision.policy, decision.remaining, decision.retry_after_s


def answer_of(decision: Decision, limits: Sequence[UserLimit]) -> list[int]:
    """A decision of a window in memory as the script would answer it."""
    answer: list[int] = []
    by_name = {state.name: state for state in decision.limits}
    for limit in limits:
        state = by_name[limit.name]
        decides = limit.name == decision.policy
        wait_us = -1 if decides and math.isinf(decision.retry_after_s) else 0
        if decides and not decision.allowed and wait_us == 0:
            wait_us = round(decision.retry_after_s * 1e6)
        answer += [wait_us, int(state.remaining), round(state.reset_s * 1e6), 0]
    return answer
