"""State of one guard in one process: breaker, clock, classifier, observers and link to the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from autoglm_throttle._runtime.fork import keep_parent_part
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.breaker import Breaker, FastPath
from autoglm_throttle.resilience.classify import OutcomeClassifier, apply_slow_limit, failure_text
from autoglm_throttle.resilience.drive import Call, Steps, drive_async, drive_sync
from autoglm_throttle.resilience.fallback import Feature
from autoglm_throttle.resilience.thread_safe_breaker import (
    END_MARGIN_S,
    BreakerStore,
    FleetLink,
    ThreadSafeBreaker,
)
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerMode,
    BreakerState,
    BreakerTransition,
    BreakerView,
    Clock,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
    StreamSettleMode,
)

# Receives the transitions of a breaker in order, after its lock is released.
TransitionsObserver = Callable[[Sequence[BreakerTransition]], None]

_SUCCESS: Final = Outcome.SUCCESS

_CLASSIFY_FAILED: Final = "classify failed; the call counts as neutral"


class Executor(Protocol):
    """Layer before a breaker that sheds the calls of one feature, or answers them by a fallback."""

    feature: Feature

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Answer one call of a plain function."""

    async def call_async(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401
        """Answer one call of a coroutine function."""

    def check_function(self, *, asynchronous: bool) -> None:
        """Raise TypeError if functions of this kind cannot use the fallback."""

    def would_shed(self) -> GuardRejection | None:
        """Return the rejection of a call that would be shed now, or None. Has no effects."""

    def reject_if_shed(self) -> GuardRejection | None:
        """Return the rejection of a shed call and count it, or None; for callers without a fallback."""


class GuardState:
    """State of one guard in one process.

    Provides admission, classification and recording of calls, and the operator commands.
    """

    __slots__ = (
        "__weakref__",
        "_executor",
        "breaker",
        "classifier",
        "clock",
        "fast",
        "fault_log",
        "first_item_s",
        "name",
        "settings",
        "settles_at_first_item",
        "slow_call_s",
        "stream_idle_s",
        "timeout_s",
        "value_is_success",
    )

    def __init__(
        self,
        name: str,
        settings: BreakerSettings,
        *,
        clock: Clock = time.monotonic,
        classifier: OutcomeClassifier | None = None,
        store: BreakerStore | None = None,
        on_transitions: TransitionsObserver | None = None,
    ) -> None:
        self.name: str = name
        self.settings: BreakerSettings = settings
        self.clock: Clock = clock
        self.classifier: OutcomeClassifier = classifier or OutcomeClassifier()
        # Read on each call: an attribute of a pydantic model takes four times as long as one of these.
        self.timeout_s: float | None = settings.timeout_s
        self.slow_call_s: float | None = settings.slow_call_s
        self.first_item_s: float | None = settings.first_item_s
        self.stream_idle_s: float | None = settings.stream_idle_s
        self.settles_at_first_item: bool = settings.stream_settle is StreamSettleMode.FIRST_ITEM
        # Whether every returned value is a success, without classification.
        self.value_is_success: bool = settings.slow_call_s is None and self.classifier.classify is None
        # Logs faults, rate-limited by kind.
        self.fault_log: RateLimitedLogger = RateLimitedLogger(name, clock)
        core = Breaker(name, settings)
        self.fast: FastPath = core.fast  # Flags and counters for calls without a lock
        self.breaker: ThreadSafeBreaker
        self._executor: Executor | None
        self._build(core, store, on_transitions)
        self.subscribe()

    def rebuild(self, store: BreakerStore | None, on_transitions: TransitionsObserver | None) -> None:
        """Build all parts with a state anew, for another process: without calls, results and executor.

        Name, settings, classifier and the commands of operators stay. A permit issued before is stale, and
        the states of the fleet arrive after `subscribe`.
        """
        keep_parent_part((self.breaker, self._executor))
        self._build(Breaker(self.name, self.settings, predecessor=self.breaker.core), store, on_transitions)

    def _build(
        self, core: Breaker, store: BreakerStore | None, on_transitions: TransitionsObserver | None
    ) -> None:
        self._executor = None
        self.breaker = ThreadSafeBreaker(core, self.clock, store, on_transitions, self.fault_log)
        self._update_fast_path()

    def __repr__(self) -> str:
        return f"<GuardState {self.breaker.describe()}>"

    @property
    def executor(self) -> Executor | None:
        """Executor of the feature, which sheds calls and has the fallbacks; None: there is neither."""
        return self._executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        self._executor = executor
        self._update_fast_path()

    def subscribe(self) -> None:
        """Subscribe to the states of the fleet, once; the first call does so, too."""
        fleet = self.breaker.fleet
        if fleet is not None:
            fleet.subscribe(self.adopt)  # held weakly

    # Calls

    def block(self) -> None:
        """Raise GuardRejected, without the lock, while the breaker is known to be open.

        Otherwise the caller must request a permit.
        """
        period = self.breaker.open_period
        fast = self.fast
        if period is None or not fast.is_direct:
            return
        since_s = self.clock() - period.at_s
        remaining_s = period.remaining_s - since_s
        is_current = fast.shared_permit.generation == period.generation
        # since_s < 0: the clock stepped back, so the breaker itself must decide.
        if is_current and remaining_s > END_MARGIN_S and since_s >= 0.0:
            period.rejections += 1
            raise GuardRejected(period.rejection, remaining_s)

    def admit(self) -> GuardPermit | GuardRejection:
        """Request one call for a caller without a fallback: rejected while the feature is shed."""
        shed_rejection = None if self._executor is None else self._executor.reject_if_shed()
        return self.allow() if shed_rejection is None else shed_rejection

    async def admit_async(self) -> GuardPermit | GuardRejection:
        """Request one call as `admit` does, without blocking the event loop."""
        shed_rejection = None if self._executor is None else self._executor.reject_if_shed()
        return await self.allow_async() if shed_rejection is None else shed_rejection

    def allow(self) -> GuardPermit | GuardRejection:
        """Request one call.

        Waits only for the fleet's store, at most its deadline: for the first state of a guard, and for the
        lease of a probe.
        """
        fleet = self.breaker.fleet
        if fleet is None:
            return self.breaker.allow(lease_required=False)
        return drive_sync(self._allow_by_fleet(fleet))

    async def allow_async(self) -> GuardPermit | GuardRejection:
        """Request one call as `allow` does, without blocking the event loop."""
        fleet = self.breaker.fleet
        if fleet is None:
            return self.breaker.allow(lease_required=False)
        return await drive_async(self._allow_by_fleet(fleet))

    def _allow_by_fleet(self, fleet: FleetLink) -> Steps[GuardPermit | GuardRejection]:
        store = fleet.store
        if fleet.is_cold:
            fleet.subscribe(self.adopt)
            remote = yield Call(store.read_state, store.read_state_async, (self.name,))
            if remote is not None:
                self.adopt(remote)
            fleet.is_cold = False
            self._update_fast_path()
        answer = self.breaker.allow(lease_required=store.is_up)
        if not (isinstance(answer, GuardRejection) and answer.lease_wanted):
            return answer
        # The lease, the state that prevents it, or None if the store is unavailable.
        reply = yield Call(store.acquire, store.acquire_async, (self.name, fleet.probe_request))
        if isinstance(reply, ProbeLease):
            return self.breaker.grant_probe(reply, fleet)
        if reply is not None:
            self.adopt(reply)
        return self.breaker.allow(lease_required=store.is_up)

    def record(self, permit: GuardPermit, outcome: Outcome, error: BaseException | str | None = None) -> None:
        """Record the outcome of a call. Never waits and never raises."""
        fast = self.fast
        # The usual case: a success changes nothing, so it needs no lock.
        if outcome is _SUCCESS and fast.success_is_noop and fast.permit is permit:
            return
        failure_note = failure_text(error) if outcome is Outcome.FAILURE and error is not None else ""
        self.breaker.record(permit, outcome, failure_note)

    def settle(self, permit: GuardPermit, result: object, *, raised: bool, elapsed_s: float = 0.0) -> Outcome:
        """Classify the result of a call and record it."""
        slow_s = self.slow_call_s
        if not raised and self.classifier.classify is None:
            outcome = apply_slow_limit(_SUCCESS, elapsed_s, slow_s)
            self.record(permit, outcome)
            return outcome
        outcome = Outcome.NEUTRAL
        try:
            outcome = apply_slow_limit(self.outcome_of(result, raised=raised), elapsed_s, slow_s)
        finally:
            self.record(permit, outcome, result if raised and isinstance(result, BaseException) else None)
        return outcome

    def start_time(self) -> float:
        """Return monotonic seconds if the duration of a call matters, else 0."""
        return 0.0 if self.slow_call_s is None else self.clock()

    def elapsed(self, begun_s: float) -> float:
        """Return the seconds since `start_time`, or 0 if the duration does not matter."""
        return 0.0 if self.slow_call_s is None else self.clock() - begun_s

    def outcome_of(self, result: object, *, raised: bool, default: Outcome = _SUCCESS) -> Outcome:
        """Classify the result of a call.

        A classifier that raises is logged and counted; the outcome is neutral.
        """
        if not raised and self.classifier.classify is None:
            return default
        try:
            return self.classifier.classify_result(result, raised=raised, default=default)
        except Exception as error:  # noqa: BLE001 - a faulty classifier must not fail the call
            self.breaker.count_classifier_error()
            self.fault_log.warn("classify", _CLASSIFY_FAILED, error=error)
            return Outcome.NEUTRAL

    def open_for(self, retry_after_s: float) -> None:
        """Open for the period that the dependency requests."""
        self.breaker.apply(partial(self.breaker.core.open_for, retry_after_s), is_local=True)

    # Operators

    def force_open(self) -> None:
        """Reject all calls until the next operator command."""
        self.breaker.operate(self.breaker.core.force_open, BreakerState.FORCED_OPEN)

    def disable(self) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self.breaker.operate(self.breaker.core.disable, BreakerState.DISABLED)

    def metrics_only(self) -> None:
        """Admit all calls and count those that would be rejected; in this process only."""
        self.breaker.apply(self.breaker.core.metrics_only, is_local=False)

    def reset(self) -> None:
        """Reset to closed and discard all results."""
        self.breaker.operate(self.breaker.core.reset, BreakerState.CLOSED)

    # Views

    def rejection(self) -> GuardRejection | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        shed_rejection = None if self._executor is None else self._executor.would_shed()
        return shed_rejection or self.breaker.rejection()

    def state(self) -> BreakerState:
        """Return the state visible to callers. Has no effects."""
        return self.breaker.state()

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        return self.breaker.view()

    @property
    def is_idle(self) -> bool:
        """Whether the guard can be evicted: initial state, no recent failure, no call in flight."""
        view = self.breaker.view()
        return (
            view.machine is BreakerState.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.settings.mode is BreakerMode.METRICS_ONLY)
        )

    def _update_fast_path(self) -> None:
        fleet, fast = self.breaker.fleet, self.fast
        fast.is_synced = fleet is None or not fleet.is_cold
        fast.is_direct = self._executor is None and fast.is_synced

    def adopt(self, remote: RemoteBreakerState) -> None:
        """Apply a newer state of the fleet."""
        self.breaker.adopt(remote)
