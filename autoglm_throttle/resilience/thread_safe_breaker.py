"""A breaker shared by threads, and its link to the store of a fleet.

Changes are serialized; notifications follow after the lock is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerTransition,
    BreakerView,
    Clock,
    GuardPermit,
    GuardRejection,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)

# Seconds before the end of an open period without use of this cache: rounding must not delay the probe.
END_MARGIN_S: Final = 0.001


Notify = Callable[[Callable[[], object]], None]  # Sends a message later


class BreakerStore(Protocol):
    """Shared state of all breakers of a process. No method raises; a method that waits says so."""

    @property
    def is_up(self) -> bool:
        """Whether the store is available; otherwise each breaker decides alone."""
        ...

    def start(self) -> None:
        """Start the background thread, unless it runs; returns at once."""
        ...

    def stop(self) -> None:
        """Stop the background thread; the next query starts it again."""
        ...

    def subscribe(self, name: str, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Register ``on_change``; it is called, from any thread, with each newer state of a breaker."""
        ...

    def read_state(self, name: str) -> RemoteBreakerState | None:
        """Wait, at most the deadline, for the first state; None: nothing is stored, or no reply."""
        ...

    async def read_state_async(self, name: str) -> RemoteBreakerState | None:
        """Wait as `read_state` does, without blocking the event loop."""
        ...

    def acquire(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a probe lease; return it, the state that prevents it, or None without a reply in time."""
        ...

    async def acquire_async(self, name: str, request: ProbeRequest) -> ProbeLease | RemoteBreakerState | None:
        """Request a lease without blocking the event loop; a cancelled call returns one that arrives late."""
        ...

    def report_open(self, name: str, wait_s: float, rounds: int, cause: BreakerCause) -> None:
        """Report that this process has opened a breaker."""
        ...

    def report_probe(
        self, name: str, lease: ProbeLease, outcome: Outcome, successes_needed: int, wait_s: float
    ) -> None:
        """Report the outcome of a probe; ``wait_s``: length of the open period after a failure."""
        ...

    def report_operator_state(self, name: str, state: BreakerState) -> None:
        """Report an operator command: ``CLOSED``, ``FORCED_OPEN`` or ``DISABLED``."""
        ...


class OpenPeriod:
    """An open period, known from the breaker's first rejection in it.

    Args:
        rejection: of an open breaker.
        generation: of the breaker; a later one ends this period.
        at_s: monotonic seconds of the rejection.
    """

    __slots__ = ("at_s", "generation", "rejection", "rejections", "remaining_s")

    def __init__(self, rejection: GuardRejection, generation: int, at_s: float) -> None:
        self.rejection: GuardRejection = rejection
        self.generation: int = generation
        self.at_s: float = at_s
        self.remaining_s: float = rejection.retry_after_s
        # Rejections served from this cache. Counted without a lock: concurrent ones may be lost.
        self.rejections: int = 0


class FleetLink:
    """One breaker's link to its fleet: the leases it holds, and its messages to the store.

    ``notify`` sends a message after the breaker's lock is left, under which it is created.
    """

    __slots__ = (
        *("_is_subscribed", "_leases", "_name", "_notify", "_settings"),
        *("is_cold", "probe_request", "store"),
    )

    def __init__(self, name: str, settings: BreakerSettings, store: BreakerStore, notify: Notify) -> None:
        self._name = name
        self._settings = settings
        self.store: BreakerStore = store
        self._notify = notify
        self._is_subscribed = False
        self._leases: dict[int, ProbeLease] = {}
        self.is_cold: bool = True  # Whether the first state of the store is still unknown
        self.probe_request: ProbeRequest = ProbeRequest(  # Parameters of each request for a probe lease
            half_open_max=settings.half_open_max,
            successes_needed=settings.successes_needed,
            limits_concurrent=settings.success_threshold is not None,
            lease_s=settings.lease_s,
        )

    def subscribe(self, on_change: Callable[[RemoteBreakerState], None]) -> None:
        """Subscribe to the states of the fleet, once."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self.store.subscribe(self._name, on_change)

    def report_open(self, changes: Sequence[BreakerTransition]) -> None:
        """Report openings that only this process knows."""
        for change in changes:
            if change.after is BreakerState.OPEN:
                period = change.retry_after_s, change.rounds, change.cause
                self._notify(partial(self.store.report_open, self._name, *period))

    def report_operator_state(self, state: BreakerState) -> None:
        """Report an operator command."""
        self._notify(partial(self.store.report_operator_state, self._name, state))

    def add_lease(self, lease: ProbeLease) -> None:
        """Store the lease of a probe that has started."""
        self._leases[lease.fence] = lease

    def finish_probe(self, fence: int, outcome: Outcome) -> None:
        """Report the outcome of a probe; nothing if its lease is not held."""
        lease = self._leases.pop(fence, None)
        if lease is not None:
            self.release(lease, outcome)

    def release(self, lease: ProbeLease, outcome: Outcome = Outcome.NEUTRAL) -> None:
        """Return a lease, with the outcome of its probe."""
        rules = self._settings.successes_needed, self._settings.wait_s(lease.rounds + 1)
        self._notify(partial(self.store.report_probe, self._name, lease, outcome, *rules))


class ThreadSafeBreaker:
    """A breaker shared by threads.

    It is changed only under the lock; no callback runs and no I/O happens under it. A result or a command of
    a thread that holds the lock is deferred until the thread leaves it.
    """

    __slots__ = (
        *("_clock", "_fast_rejections", "_fault_log", "_lock", "_on_transitions"),
        *("core", "fleet", "open_period"),
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
        self._fault_log = fault_log
        self._fast_rejections: dict[BreakerCause, int] = {}
        self.open_period: OpenPeriod | None = None  # The newest open period, while it may last
        self.fleet: FleetLink | None = (  # Link to the fleet; None: this process decides alone
            None if store is None else FleetLink(core.name, core.settings, store, self._notify_later)
        )

    def allow(self, *, lease_required: bool) -> GuardPermit | GuardRejection:
        """Request one call; ``lease_required``: whether a probe needs the fleet's lease."""
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
            core.probes.lease_required = lease_required
            answer = core.allow(now)
            if core.generation != generation:
                self._publish(is_local=True)
            if isinstance(answer, GuardRejection) and answer.state is BreakerState.OPEN:
                self._start_open_period(answer, now)
        return answer

    def record(self, permit: GuardPermit, outcome: Outcome, failure_text: str) -> None:
        """Record the outcome of a call; ``failure_text`` is empty without a failure."""
        self._lock.run(partial(self._record, permit, outcome, failure_text, self._clock()))

    def apply(self, action: Callable[[float], None], *, is_local: bool) -> None:
        """Run an action that may change the state; ``is_local``: the fleet must be informed of an opening."""
        self._lock.run(partial(self._apply, action, is_local=is_local))

    def operate(self, action: Callable[[float], None], state: BreakerState) -> None:
        """Run an operator command here and send it to the fleet."""
        self.apply(action, is_local=False)
        if self.fleet is not None:
            with self._lock:
                self.fleet.report_operator_state(state)

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

    def _notify_later(self, message: Callable[[], object]) -> None:
        """Send a message in order, by one thread at a time, when the lock is left."""
        self._lock.pending.append(partial(self._send, message))

    def _send(self, message: Callable[[], object]) -> None:
        try:
            message()
        except Exception as error:  # noqa: BLE001 - the caller that made the change must not fail
            self._fault_log.warn("observer", "an observer failed; the state change stands", error=error)

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
        """Queue the transitions for the observers, and local openings for the fleet unless metrics-only."""
        changes = self.core.drain()
        if changes and self._on_transitions is not None:
            self._notify_later(partial(self._on_transitions, changes))
        if is_local and self.fleet is not None and not self.core.machine.metrics_only:
            self.fleet.report_open(changes)
