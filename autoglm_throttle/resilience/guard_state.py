"""State of one guard in one process: breaker, clock, classifier, observers and link to the fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from autoglm_throttle.events.rate_limited_logger import RateLimitedLogger
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.breaker_rules import BreakerRules
from autoglm_throttle.resilience.executor import Executor
from autoglm_throttle.resilience.fleet_link import FleetLink
from autoglm_throttle.resilience.open_period import END_MARGIN_S, OpenGuardRejected
from autoglm_throttle.resilience.outcome_classifier import OutcomeClassifier, apply_slow_limit, failure_text
from autoglm_throttle.resilience.store import BreakerStore, ProbeLease, RemoteBreakerState
from autoglm_throttle.resilience.thread_safe_breaker import ThreadSafeBreaker
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    BreakerView,
    Clock,
    GuardPermit,
    GuardRejection,
    Outcome,
)

_SUCCESS: Final = Outcome.SUCCESS

_CLASSIFY_FAILED: Final = "classify failed; the call counts as neutral"


class GuardState:
    """State of one guard in one process.

    Provides admission, classification and recording of calls, and the operator commands.

    Args:
        name: of the guard.
        rules: settings of its breaker.
        clock: monotonic seconds.
        classifier: maps results to outcomes; None: the built-in table alone.
        store: the state shared by the fleet; None: this process decides alone.
        on_transitions: receives the transitions in order, after the lock is released.
    """

    __slots__ = (
        *(
            "__weakref__",
            "fault_log",
            "_safe_breaker",
            "_executor",
            "_shed_check",
            "breaker",
            "clock",
            "is_direct",
            "classifier",
        ),
        *("is_synced", "name", "rules", "slow_s", "store", "is_untimed", "value_is_success"),
    )

    def __init__(
        self,
        name: str,
        rules: BreakerRules,
        *,
        clock: Clock = time.monotonic,
        classifier: OutcomeClassifier | None = None,
        store: BreakerStore | None = None,
        on_transitions: Callable[[Sequence[BreakerTransition]], None] | None = None,
    ) -> None:
        self.name: str = name
        self.rules: BreakerRules = rules
        self.slow_s: float | None = rules.slow_call_s
        """Duration in seconds above which a call is slow; None: the duration is not measured."""
        self.is_untimed: bool = rules.slow_call_s is None and rules.timeout_s is None
        """Whether a block needs no clock."""
        self.clock: Clock = clock
        self.classifier: OutcomeClassifier = classifier or OutcomeClassifier()
        self.value_is_success: bool = rules.slow_call_s is None and self.classifier.classify is None
        """Whether every returned value is a success, without classification."""
        self.store: BreakerStore | None = store
        self.breaker: Breaker = Breaker(name, rules, clock())
        self.is_synced: bool = False
        """Whether the fleet's first state is known, or not needed."""
        self.is_direct: bool = False
        """Whether only the breaker decides: `is_synced`, no load shedding, no fallback.

        ``breaker.fast_permit`` may then be used without further checks.
        """
        self._executor: Executor | None = None
        self._shed_check: Callable[[], GuardRejection | None] | None = None
        self.fault_log: RateLimitedLogger = RateLimitedLogger(name, clock)
        """Logs faults, rate-limited by kind."""
        self._safe_breaker = ThreadSafeBreaker(self.breaker, clock, store, on_transitions, self.fault_log)
        self._update_fast_path()
        if store is not None:
            store.subscribe(name, self.adopt)  # held weakly

    def __repr__(self) -> str:
        return f"<GuardState {self.breaker!r}>"

    @property
    def executor(self) -> Executor | None:
        """Executor with fallbacks for decorated functions; None: the guard has no fallback."""
        return self._executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        self._executor = executor
        self._update_fast_path()

    @property
    def shed_check(self) -> Callable[[], GuardRejection | None] | None:
        """Check used by callers without a fallback: returns the rejection while the feature is shed."""
        return self._shed_check

    @shed_check.setter
    def shed_check(self, shed_check: Callable[[], GuardRejection | None] | None) -> None:
        self._shed_check = shed_check
        self._update_fast_path()

    # Calls

    def block(self) -> None:
        """Reject a call without the lock while the breaker is known to be open.

        Raises:
            OpenGuardRejected: it is open. Otherwise the caller must request a permit.
        """
        period = self._safe_breaker.open_period
        if period is None or not self.is_direct:
            return
        since_s = self.clock() - period.at_s
        remaining_s = period.remaining_s - since_s
        # since_s < 0: the clock stepped back, so the breaker itself must decide.
        if remaining_s > END_MARGIN_S and since_s >= 0.0 and self.breaker.generation == period.generation:
            period.rejections += 1
            raise OpenGuardRejected(period.rejection, remaining_s)

    def admit(self) -> GuardPermit | GuardRejection:
        """Request one call for a caller without a fallback: rejected while the feature is shed."""
        shed_rejection = None if self._shed_check is None else self._shed_check()
        return self.allow() if shed_rejection is None else shed_rejection

    async def admit_async(self) -> GuardPermit | GuardRejection:
        """Request one call as `admit` does, without blocking the event loop."""
        shed_rejection = None if self._shed_check is None else self._shed_check()
        return await self.allow_async() if shed_rejection is None else shed_rejection

    def allow(self) -> GuardPermit | GuardRejection:
        """Request one call.

        Waits only for the fleet's store, at most its deadline: for the first state of a guard, and for the
        lease of a probe.
        """
        store, fleet = self.store, self._safe_breaker.fleet
        if store is None or fleet is None:
            return self._safe_breaker.allow(lease_required=False)
        if fleet.is_cold:
            self._sync(fleet, store.read_state(self.name))
        answer = self._safe_breaker.allow(lease_required=store.is_up)
        if isinstance(answer, GuardRejection) and answer.lease_wanted:
            return self._apply_lease_reply(store.acquire(self.name, fleet.probe_request))
        return answer

    async def allow_async(self) -> GuardPermit | GuardRejection:
        """Request one call as `allow` does, without blocking the event loop."""
        store, fleet = self.store, self._safe_breaker.fleet
        if store is None or fleet is None:
            return self._safe_breaker.allow(lease_required=False)
        if fleet.is_cold:
            self._sync(fleet, await store.read_state_async(self.name))
        answer = self._safe_breaker.allow(lease_required=store.is_up)
        if isinstance(answer, GuardRejection) and answer.lease_wanted:
            return self._apply_lease_reply(await store.acquire_async(self.name, fleet.probe_request))
        return answer

    def record(self, permit: GuardPermit, outcome: Outcome, error: BaseException | str | None = None) -> None:
        """Record the outcome of a call. Never waits and never raises.

        Args:
            permit: of the call; recorded once.
            outcome: of the call.
            error: the exception or the text of the failure, for ``last_failure``.
        """
        core = self.breaker
        # The usual case: a success changes nothing, so it needs no lock.
        if outcome is _SUCCESS and core.success_is_noop and core.fast_permit is permit:
            return
        failure_note = failure_text(error) if outcome is Outcome.FAILURE and error is not None else ""
        self._safe_breaker.record(permit, outcome, failure_note)

    def settle(self, permit: GuardPermit, result: object, *, raised: bool, elapsed_s: float = 0.0) -> Outcome:
        """Classify the result of a call and record it.

        Args:
            permit: of the call.
            result: the returned value or the exception.
            raised: whether the result was raised.
            elapsed_s: duration of the call in seconds; used only with ``slow_call_s``.
        """
        if not raised and self.classifier.classify is None:
            outcome = apply_slow_limit(_SUCCESS, elapsed_s, self.slow_s)
            self.record(permit, outcome)
            return outcome
        outcome = Outcome.NEUTRAL
        try:
            outcome = apply_slow_limit(self.outcome_of(result, raised=raised), elapsed_s, self.slow_s)
        finally:
            self.record(permit, outcome, result if raised and isinstance(result, BaseException) else None)
        return outcome

    def start_time(self) -> float:
        """Return monotonic seconds if the duration of a call matters, else 0."""
        return 0.0 if self.slow_s is None else self.clock()

    def elapsed(self, begun_s: float) -> float:
        """Return the seconds since `start_time`, or 0 if the duration does not matter."""
        return 0.0 if self.slow_s is None else self.clock() - begun_s

    def outcome_of(self, result: object, *, raised: bool, default: Outcome = _SUCCESS) -> Outcome:
        """Classify the result of a call.

        A classifier that raises is logged and counted; the outcome is neutral.

        Args:
            result: the returned value or the exception.
            raised: whether the result was raised.
            default: outcome of a returned value if the user's classifier returns None.
        """
        if not raised and self.classifier.classify is None:
            return default
        try:
            return self.classifier.classify_result(result, raised=raised, default=default)
        except Exception as error:  # noqa: BLE001 - a faulty classifier must not fail the call
            self._safe_breaker.count_classifier_error()
            self.fault_log.warn("classify", _CLASSIFY_FAILED, error=error)
            return Outcome.NEUTRAL

    def open_for(self, retry_after_s: float) -> None:
        """Open for the period that the dependency requests.

        Args:
            retry_after_s: seconds from now.
        """
        action = partial(self.breaker.open_for, retry_after_s, BreakerCause.RETRY_AFTER)
        self._safe_breaker.apply(action, is_local=True)

    # Operators

    def force_open(self) -> None:
        """Reject all calls until the next operator command."""
        self._safe_breaker.operate(self.breaker.force_open, BreakerState.FORCED_OPEN)

    def disable(self) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self._safe_breaker.operate(self.breaker.disable, BreakerState.DISABLED)

    def metrics_only(self) -> None:
        """Admit all calls and count those that would be rejected; in this process only."""
        self._safe_breaker.apply(self.breaker.metrics_only, is_local=False)

    def reset(self) -> None:
        """Reset to closed and discard all results."""
        self._safe_breaker.operate(self.breaker.reset, BreakerState.CLOSED)

    # Views

    def rejection(self) -> GuardRejection | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        shed_rejection = None if self._executor is None else self._executor.would_shed()
        return shed_rejection or self._safe_breaker.rejection()

    def state(self) -> BreakerState:
        """Return the state visible to callers. Has no effects."""
        return self._safe_breaker.state()

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        return self._safe_breaker.view()

    @property
    def is_idle(self) -> bool:
        """Whether the guard can be evicted: initial state, no recent failure, no call in flight."""
        view = self._safe_breaker.view()
        return (
            view.machine is BreakerState.CLOSED
            and not (view.streak or view.window_failures or view.window_slow or view.in_flight)
            and view.metrics_only is (self.rules.mode is BreakerMode.METRICS_ONLY)
        )

    def reset_after_fork(self) -> None:
        """Reset in a forked child: the parent's threads and their calls do not exist here."""
        self._safe_breaker.reset_locks()
        self.breaker.reset_after_fork(self.clock())
        self._update_fast_path()
        if self._executor is not None:
            self._executor.reset_after_fork()

    def _update_fast_path(self) -> None:
        fleet = self._safe_breaker.fleet
        self.is_synced = fleet is None or not fleet.is_cold
        self.is_direct = self._executor is None and self._shed_check is None and self.is_synced

    # The fleet

    def _sync(self, fleet: FleetLink, remote: RemoteBreakerState | None) -> None:
        if remote is not None:
            self.adopt(remote)
        fleet.is_cold = False
        self._update_fast_path()

    def adopt(self, remote: RemoteBreakerState) -> None:
        """Apply a newer state of the fleet."""
        self._safe_breaker.adopt(remote)

    def _apply_lease_reply(
        self, reply: ProbeLease | RemoteBreakerState | None
    ) -> GuardPermit | GuardRejection:
        """Apply the store's reply to the request of a probe lease.

        Args:
            reply: the lease, the state that prevents it, or None if the store is unavailable.
        """
        if isinstance(reply, ProbeLease):
            return self._safe_breaker.grant_probe(reply)
        if reply is not None:
            self.adopt(reply)
        store = self.store
        return self._safe_breaker.allow(lease_required=store is not None and store.is_up)
