"""State of one guard in one process: its breaker shared by threads, clock, classifier and observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from autoglm_throttle._runtime.fork import keep_parent_part
from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.breaker import Breaker, FastPath
from autoglm_throttle.resilience.classify import (
    OutcomeClassifier,
    apply_slow_limit,
    error_status,
    failure_text,
    is_plain,
    value_outcome,
)
from autoglm_throttle.resilience.drive import Call, Steps, drive_async, drive_sync
from autoglm_throttle.resilience.fallback import Feature
from autoglm_throttle.resilience.fleet_link import BreakerStore, FleetLink
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
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

T = TypeVar("T")

_SUCCESS: Final = Outcome.SUCCESS

# Seconds before the end of an open period without lock-free rejections: rounding must not delay the probe.
END_MARGIN_S: Final = 0.001

# Commands of operators that the whole fleet obeys, with the state that they set.
_FLEET_COMMANDS: Final = {
    BreakerEvent.FORCE: BreakerState.FORCED_OPEN,
    BreakerEvent.DISABLE: BreakerState.DISABLED,
    BreakerEvent.RESET: BreakerState.CLOSED,
}

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

    def shed_rejection(self, *, counted: bool) -> GuardRejection | None:
        """Return the rejection of a call that is shed now, or None; for callers without a fallback."""


class ThreadSafeBreaker:
    """A breaker shared by threads: it is changed only under the lock, without callbacks and I/O.

    A result or a command of a thread that holds the lock is deferred until the thread leaves it.
    """

    __slots__ = ("_clock", "_lock", "_on_transitions", "core", "fleet", "open_period")

    def __init__(
        self,
        core: Breaker,
        clock: Clock,
        store: BreakerStore | None,
        on_transitions: TransitionsObserver | None,
        fault_log: RateLimitedLogger,
    ) -> None:
        self.core: Breaker = core
        self._clock = clock
        self._on_transitions = on_transitions
        self._lock = SerialLock()
        # The newest open period: a rejection, its generation, its monotonic seconds and those of the end.
        self.open_period: tuple[GuardRejection, int, float, float] | None = None
        name = core.machine.name
        self.fleet: FleetLink | None = (  # Link to the fleet; None: this process decides alone
            None if store is None else FleetLink(name, core.settings, store, self._lock.pending, fault_log)
        )

    def allow(self, *, lease_required: bool) -> GuardPermit | GuardRejection:
        """Request one call; ``lease_required``: whether a probe needs the fleet's lease."""
        core = self.core
        permit = core.fast.permit
        if permit is not None:
            core.fast.calls += 1
            return permit
        if self._lock.is_held():  # this thread is changing the breaker: reject, do not decide in between
            return GuardRejection(core.machine.name, BreakerState.HALF_OPEN, BreakerCause.IN_FLIGHT, 0.0)
        now = self._clock()
        with self._lock:
            core.slots.lease_required = lease_required
            answer = core.allow(now)
            if core.machine.pending:
                self._publish(is_local=True)
            if isinstance(answer, GuardRejection) and answer.state is BreakerState.OPEN:
                self.open_period = answer, core.generation, now, now + answer.retry_after_s
        return answer

    def record(self, permit: GuardPermit, outcome: Outcome, failure_text: str) -> None:
        """Record the outcome of a call; ``failure_text`` is empty without a failure."""
        self._lock.run(partial(self._record, permit, outcome, failure_text, self._clock()))

    def apply(self, action: Callable[[float], None], *, is_local: bool) -> None:
        """Run an action that may change the state; ``is_local``: the fleet must be informed of an opening."""
        self._lock.run(partial(self._apply, action, is_local=is_local))

    def operate(self, command: BreakerEvent) -> None:
        """Apply a command of an operator here and, except for metrics-only, in the fleet."""
        self.apply(partial(self.core.operate, command), is_local=False)
        state = _FLEET_COMMANDS.get(command)
        if self.fleet is not None and state is not None:
            with self._lock:
                self.fleet.report_operator_state(state)

    def grant_probe(self, lease: ProbeLease, fleet: FleetLink) -> GuardPermit | GuardRejection:
        """Start a probe with a lease; if the state has changed meanwhile, the lease is returned."""
        core = self.core
        with self._lock:
            answer = core.grant_probe(lease, self._clock())
            if isinstance(answer, GuardPermit) and answer.fence:
                fleet.add_lease(lease)
            else:
                fleet.release(lease)
            if core.machine.pending:
                self._publish(is_local=False)
        return answer

    def count_classifier_error(self) -> None:
        """Count an exception of the user's classifier."""
        with self._lock:
            self.core.classifier_errors += 1

    def read(self, question: Callable[[float], T]) -> T:
        """Answer a question about the breaker, without effects."""
        with self._lock:
            return question(self._clock())

    def _apply(self, action: Callable[[float], None], *, is_local: bool) -> None:
        action(self._clock())
        if self.core.machine.pending:
            self._publish(is_local=is_local)

    def _record(self, permit: GuardPermit, outcome: Outcome, failure_text: str, now: float) -> None:
        core = self.core
        if failure_text:
            core.record_failure_text(failure_text)
        core.record(permit, outcome, now)
        if core.machine.pending:
            # The store derives the opening from the probe's result itself: do not report it twice.
            self._publish(is_local=not permit.fence)
        if self.fleet is not None and permit.fence:
            self.fleet.finish_probe(permit.fence, outcome)

    def _publish(self, *, is_local: bool) -> None:
        # Messages are sent in order, by one thread at a time, when the lock is left.
        changes = self.core.machine.drain()
        if self._on_transitions is not None:
            self._lock.pending.append(partial(self._on_transitions, changes))
        if is_local and self.fleet is not None and not self.core.machine.metrics_only:
            self.fleet.report_open(changes)


class GuardState:
    """State of one guard in one process: admits, classifies and records its calls."""

    __slots__ = (
        *("__weakref__", "breaker", "classifier", "clock", "executor", "fast", "fault_log", "first_item_s"),
        *("name", "settings", "settles_at_first_item", "slow_call_s", "stream_idle_s", "timeout_s"),
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
        self.executor: Executor | None
        self._build(core, store, on_transitions)
        self.subscribe()

    def rebuild(self, store: BreakerStore | None, on_transitions: TransitionsObserver | None) -> None:
        """Build all parts with a state anew, for another process; only the commands of operators stay."""
        keep_parent_part((self.breaker, self.executor))
        self._build(Breaker(self.name, self.settings, predecessor=self.breaker.core), store, on_transitions)

    def _build(
        self, core: Breaker, store: BreakerStore | None, on_transitions: TransitionsObserver | None
    ) -> None:
        self.executor = None
        self.breaker = ThreadSafeBreaker(core, self.clock, store, on_transitions, self.fault_log)
        self._update_fast_path()

    def attach(self, executor: Executor | None) -> None:
        """Set the executor of the feature, which sheds calls and has the fallbacks; None: there is none."""
        self.executor = executor
        self._update_fast_path()

    def subscribe(self) -> None:
        """Subscribe to the states of the fleet, once; the first call does so, too."""
        fleet = self.breaker.fleet
        if fleet is not None:
            fleet.subscribe(self.adopt)  # held weakly

    # Calls

    def block(self) -> None:
        """Raise GuardRejected, without the lock, while the breaker is known to be open."""
        period = self.breaker.open_period
        fast = self.fast
        if period is None or not fast.is_direct:
            return
        rejection, generation, at_s, end_s = period
        now = self.clock()
        # Before `at_s` the clock has stepped back, so the breaker itself must decide.
        if fast.shared_permit.generation == generation and at_s <= now < end_s - END_MARGIN_S:
            fast.open_rejections += 1
            raise GuardRejected(rejection, end_s - now)

    def allow(self, sheds: bool = False) -> GuardPermit | GuardRejection:
        """Request one call; ``sheds``: for a caller without a fallback, rejected while the feature is shed.

        Waits only for the fleet's store, at most its deadline: for the first state of a guard, and for the
        lease of a probe.
        """
        fleet, executor = self.breaker.fleet, self.executor
        rejection = executor.shed_rejection(counted=True) if sheds and executor is not None else None
        if rejection is not None:
            return rejection
        if fleet is None:
            return self.breaker.allow(lease_required=False)
        return drive_sync(self._allow_by_fleet(fleet))

    async def allow_async(self, sheds: bool = False) -> GuardPermit | GuardRejection:
        """Request one call as `allow` does, without blocking the event loop."""
        fleet, executor = self.breaker.fleet, self.executor
        rejection = executor.shed_rejection(counted=True) if sheds and executor is not None else None
        if rejection is not None:
            return rejection
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
        if outcome is _SUCCESS and fast.noop_permit is permit:
            return
        failure_note = failure_text(error) if outcome is Outcome.FAILURE and error is not None else ""
        self.breaker.record(permit, outcome, failure_note)

    def settle(
        self, permit: GuardPermit, result: object, *, raised: bool, begun_s: float | None = None
    ) -> Outcome:
        """Classify the result of a call and record it; without ``begun_s`` it cannot be slow."""
        slow_s = self.slow_call_s
        elapsed_s = 0.0 if slow_s is None or begun_s is None else self.clock() - begun_s
        outcome = Outcome.NEUTRAL
        try:
            outcome = apply_slow_limit(self.outcome_of(result, raised=raised), elapsed_s, slow_s)
        finally:
            self.record(permit, outcome, _failure_of(result, outcome, raised=raised))
        return outcome

    def start_time(self) -> float:
        """Return monotonic seconds if the duration of a call matters, else 0."""
        return 0.0 if self.slow_call_s is None else self.clock()

    def outcome_of(self, result: object, *, raised: bool, default: Outcome | None = None) -> Outcome:
        """Classify the result of a call; neutral if the classifier raises, which is logged and counted."""
        if not raised and self.classifier.classify is None:
            return default or (_SUCCESS if is_plain(result) else value_outcome(result))
        try:
            return self.classifier.classify_result(result, raised=raised, default=default)
        except Exception as error:  # noqa: BLE001 - a faulty classifier must not fail the call
            self.breaker.count_classifier_error()
            self.fault_log.warn("classify", _CLASSIFY_FAILED, error=error)
            return Outcome.NEUTRAL

    def open_for(self, retry_after_s: float) -> None:
        """Open for the period that the dependency requests."""
        self.breaker.apply(partial(self.breaker.core.open_for, retry_after_s), is_local=True)

    # Views

    def rejection(self) -> GuardRejection | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        executor = self.executor
        shed_rejection = None if executor is None else executor.shed_rejection(counted=False)
        return shed_rejection or self.breaker.read(self.breaker.core.rejection)

    def state(self) -> BreakerState:
        """Return the state visible to callers. Has no effects."""
        return self.breaker.read(self.breaker.core.state)

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        return self.breaker.read(self.breaker.core.view)

    @property
    def is_idle(self) -> bool:
        """Whether the guard can be evicted: initial state, no recent failure, no call in flight."""
        view = self.view()
        return (
            view.machine is BreakerState.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.settings.mode is BreakerMode.METRICS_ONLY)
        )

    def _update_fast_path(self) -> None:
        fleet, fast = self.breaker.fleet, self.fast
        fast.is_synced = fleet is None or not fleet.is_cold
        fast.is_direct = self.executor is None and fast.is_synced

    def adopt(self, remote: RemoteBreakerState) -> None:
        """Apply a newer state of the fleet."""
        self.breaker.apply(partial(self.breaker.core.adopt, remote), is_local=False)


def _failure_of(result: object, outcome: Outcome, *, raised: bool) -> BaseException | str | None:
    """Return the failure to record: the exception, or the status of a returned response."""
    if raised or outcome is not Outcome.FAILURE:
        return result if isinstance(result, BaseException) else None
    status = error_status(result)
    return None if status is None else f"HTTP {status}"


def require_permit(answer: GuardPermit | GuardRejection) -> GuardPermit:
    """Return a permit, or raise GuardRejected."""
    if isinstance(answer, GuardRejection):
        raise GuardRejected(answer)
    return answer
