"""A thread-safe breaker: changes are serialized, notifications follow after the lock is released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events.rate_limited_logger import RateLimitedLogger
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.fleet_link import FleetLink
from autoglm_throttle.resilience.notification_queue import NotificationQueue
from autoglm_throttle.resilience.open_period import OpenPeriod
from autoglm_throttle.resilience.store import BreakerStore, ProbeLease, RemoteBreakerState
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    BreakerView,
    Clock,
    GuardPermit,
    GuardRejection,
    Outcome,
)


class ThreadSafeBreaker:
    """A breaker shared by threads.

    It is changed only under the lock; no callback runs and no I/O happens under it. A result or a command of
    a thread that holds the lock is deferred until the thread leaves it.

    Args:
        core: the breaker; only this class changes it.
        clock: monotonic seconds.
        store: the state shared by the fleet; None: this process decides alone.
        on_transitions: receives the transitions in order, after the lock is released.
        fault_log: logs exceptions of ``on_transitions``.
    """

    __slots__ = (
        "_clock",
        "_fast_rejections",
        "_lock",
        "_notifications",
        "_on_transitions",
        "core",
        "fleet",
        "open_period",
    )

    def __init__(
        self,
        core: Breaker,
        clock: Clock,
        store: BreakerStore | None,
        on_transitions: Callable[[Sequence[BreakerTransition]], None] | None,
        fault_log: RateLimitedLogger,
    ) -> None:
        self.core: Breaker = core
        self._clock = clock
        self._on_transitions = on_transitions
        self._lock = SerialLock()
        self._notifications = NotificationQueue(fault_log)
        self._fast_rejections: dict[BreakerCause, int] = {}
        self.open_period: OpenPeriod | None = None
        """The newest open period, while it may last."""
        self.fleet: FleetLink | None = (
            None if store is None else FleetLink(core.name, core.settings, store, self._notifications)
        )
        """Link to the fleet; None: this process decides alone."""

    def allow(self, *, lease_required: bool) -> GuardPermit | GuardRejection:
        """Request one call.

        Args:
            lease_required: whether a probe needs the fleet's lease.
        """
        core = self.core
        permit = core.fast.permit
        if permit is not None:
            core.fast.calls += 1
            return permit
        if self._lock.is_held():  # this thread is changing the breaker: reject, do not decide in between
            return GuardRejection(core.name, BreakerState.HALF_OPEN, BreakerCause.IN_FLIGHT, 0.0)
        now = self._clock()
        with self._lock:
            generation = core.generation
            core.fleet_position.lease_required = lease_required
            answer = core.allow(now)
            if core.generation != generation:
                self._publish(is_local=True)
            if isinstance(answer, GuardRejection) and answer.state is BreakerState.OPEN:
                self._start_open_period(answer, now)
        self._notifications.deliver()
        return answer

    def record(self, permit: GuardPermit, outcome: Outcome, failure_text: str) -> None:
        """Record the outcome of a call.

        Args:
            permit: of the call.
            outcome: of the call.
            failure_text: text of the failure; empty without one.
        """
        self._change(partial(self._record, permit, outcome, failure_text, self._clock()))

    def apply(self, action: Callable[[float], None], *, is_local: bool) -> None:
        """Run an action that may change the breaker's state.

        Args:
            action: receives the time.
            is_local: whether the fleet must be informed of an opening.
        """
        self._change(partial(self._apply, action, is_local=is_local))

    def operate(self, action: Callable[[float], None], state: BreakerState) -> None:
        """Run an operator command here and send it to the fleet."""
        self.apply(action, is_local=False)
        if self.fleet is not None:
            self.fleet.report_operator_state(state)
            self._notifications.deliver()

    def adopt(self, remote: RemoteBreakerState) -> None:
        """Apply a newer state of the fleet."""
        self.apply(partial(self.core.adopt, remote), is_local=False)

    def grant_probe(self, lease: ProbeLease, fleet: FleetLink) -> GuardPermit | GuardRejection:
        """Start a probe with a lease; if the state has changed meanwhile, the lease is returned."""
        core = self.core
        with self._lock:
            generation = core.generation
            answer = core.grant_probe(lease, self._clock())
            if isinstance(answer, GuardPermit) and answer.fence:
                fleet.add_lease(lease)
            else:
                fleet.release(lease)
            if core.generation != generation:
                self._publish(is_local=False)
        self._notifications.deliver()
        return answer

    def count_classifier_error(self) -> None:
        """Count an exception of the user's classifier."""
        with self._lock:
            self.core.counts.classifier_errors += 1

    def state(self) -> BreakerState:
        """Return the state visible to callers. Has no effects."""
        with self._lock:
            return self.core.state(self._clock())

    def rejection(self) -> GuardRejection | None:
        """Return the rejection of a call made now, or None. Has no effects."""
        with self._lock:
            return self.core.rejection(self._clock())

    def view(self) -> BreakerView:
        """Return an immutable view of the breaker. Has no effects."""
        with self._lock:
            view = self.core.view(self._clock())
            rejections = dict(view.rejected)
            open_period = self.open_period
            fast_rejections = [*self._fast_rejections.items()] + (
                [(open_period.rejection.cause, open_period.rejections)] if open_period else []
            )
        for cause, count in fast_rejections:
            rejections[cause] = rejections.get(cause, 0) + count
        return replace(view, rejected=rejections)

    def describe(self) -> str:
        """Return state and figures in one line. Has no effects."""
        with self._lock:
            return self.core.describe(self._clock())

    def _change(self, action: Callable[[], None]) -> None:
        """Run an action under the lock and deliver the notifications; deferred if the lock is held here."""
        self._lock.run(action)
        if self._lock.is_held():
            self._lock.pending.append(self._notifications.deliver)
        else:
            self._notifications.deliver()

    def _start_open_period(self, rejection: GuardRejection, now: float) -> None:
        before, self.open_period = self.open_period, OpenPeriod(rejection, self.core.generation, now)
        if before is not None:
            cause = before.rejection.cause
            self._fast_rejections[cause] = self._fast_rejections.get(cause, 0) + before.rejections

    def _apply(self, action: Callable[[float], None], *, is_local: bool) -> None:
        generation = self.core.generation
        action(self._clock())
        if self.core.generation != generation:
            self._publish(is_local=is_local)

    def _record(self, permit: GuardPermit, outcome: Outcome, failure_text: str, now: float) -> None:
        core = self.core
        if failure_text:
            core.record_failure_text(failure_text)
        generation = core.generation
        core.record(permit, outcome, now)
        if core.generation != generation:
            # The store derives the opening from the probe's result itself: do not report it twice.
            self._publish(is_local=not permit.fence)
        if self.fleet is not None and permit.fence:
            self.fleet.finish_probe(permit.fence, outcome)

    def _publish(self, *, is_local: bool) -> None:
        """Queue the transitions for the observers, and local openings for the fleet.

        A breaker in metrics-only mode sends nothing to the fleet.
        """
        changes = self.core.drain()
        if changes and self._on_transitions is not None:
            self._notifications.put(partial(self._on_transitions, changes))
        if is_local and self.fleet is not None and not self.core.operator.metrics_only:
            self.fleet.report_open(changes)
