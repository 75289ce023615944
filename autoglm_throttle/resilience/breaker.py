"""The circuit breaker as a pure state machine: no clock, lock or I/O; every method receives the time.

The state transitions stand in `transitions`. `failure_stats` decides when a closed breaker opens.
`half_open_probes` and `ramp` decide which calls are admitted meanwhile. Each change of state starts a new
generation. A result of an earlier generation is counted as stale and changes nothing, so a late result never
closes, opens or prolongs anything. A probe has a lease, so a hanging probe costs a wait and never blocks the
breaker. Other calls have no lease: with ``max_in_flight`` a call holds its slot until its result is recorded,
however late, and that result counts. A clock that steps back is treated as standing still.
"""

from __future__ import annotations

from typing import Final

from autoglm_throttle.resilience.breaker_counts import BreakerCounts
from autoglm_throttle.resilience.breaker_summary import summarize
from autoglm_throttle.resilience.failure_stats import FailureStats
from autoglm_throttle.resilience.fast_path import FastPath
from autoglm_throttle.resilience.fleet_position import LEASE_REQUEST_INTERVAL_S, FleetPosition
from autoglm_throttle.resilience.half_open_probes import HalfOpenProbes
from autoglm_throttle.resilience.in_flight_calls import InFlightCalls
from autoglm_throttle.resilience.operator_override import OperatorOverride
from autoglm_throttle.resilience.ramp import RampUp
from autoglm_throttle.resilience.rejections import build_rejection
from autoglm_throttle.resilience.state_machine import BreakerStateMachine
from autoglm_throttle.resilience.store import ProbeLease, RemoteBreakerState
from autoglm_throttle.resilience.transitions import OPERATOR_STATES, BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    BreakerTransition,
    BreakerView,
    GuardPermit,
    GuardRejection,
    Outcome,
    SlowCallMode,
)

MAX_RETRY_AFTER_S: Final = 300.0
"""Longest accepted Retry-After in seconds if ``open_max_s`` is None: protects against a wrong value."""

LAST_FAILURE_MAX_CHARS: Final = 200
"""Characters kept of a failure's text: enough to identify it, too few for a response body."""

UNRECORDED_PERMIT: Final = GuardPermit(generation=-1)
"""Permit of a call that an enforcing breaker would have rejected: its result is not counted."""

# Read on every call: a module-level name costs a fraction of an enum member look-up.
_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_RAMPING: Final = BreakerState.RAMPING


class Breaker:
    """One circuit breaker. Its owner must serialize all calls of its methods.

    Args:
        name: of the guard.
        settings: complete and validated.
        lease_request_interval_s: seconds between two calls that may request the fleet's lease, > 0.
        predecessor: breaker of the same guard that this one replaces. Commands of operators and the fast path
            are taken over, and the permits of the predecessor are stale here. All else begins anew.
    """

    __slots__ = (
        "_failure_stats",
        "_in_flight",
        "_probes",
        "_ramp",
        "counts",
        "fast",
        "fleet_position",
        "machine",
        "operator",
        "settings",
    )

    def __init__(
        self,
        name: str,
        settings: BreakerSettings,
        lease_request_interval_s: float = LEASE_REQUEST_INTERVAL_S,
        predecessor: Breaker | None = None,
    ) -> None:
        self.settings: BreakerSettings = settings
        self.fast: FastPath
        """Flags and counters for calls without a lock."""
        self.counts: BreakerCounts = BreakerCounts()
        self.fleet_position: FleetPosition = FleetPosition(lease_request_interval_s)
        self.machine: BreakerStateMachine
        """State, generation and open period; for a successor."""
        self.operator: OperatorOverride
        """Commands of operators; for a successor."""
        if predecessor is None:
            start = BreakerState.DISABLED if settings.mode is BreakerMode.DISABLED else _CLOSED
            self.fast = FastPath(settings)
            self.machine = BreakerStateMachine(name, settings, start)
            self.operator = OperatorOverride(metrics_only=settings.mode is BreakerMode.METRICS_ONLY)
        else:
            self.fast = predecessor.fast
            self.fast.calls = 0
            self.machine = predecessor.machine.successor()
            self.operator = predecessor.operator
        self._probes = HalfOpenProbes(settings)
        self._failure_stats = FailureStats(settings)
        self._ramp = RampUp(settings.ramp, settings.ramp_step_s)
        self._in_flight = InFlightCalls(settings.max_in_flight)
        self._start_generation()

    @property
    def generation(self) -> int:
        """Generation number: rises by one with each change of state. Each permit carries its own."""
        return self.machine.generation

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.machine.name

    def __repr__(self) -> str:
        return f"<Breaker {self.name!r} {self.machine.state}, gen {self.generation}>"

    def describe(self, now: float) -> str:
        """Return state and figures in one line. Has no effects."""
        return f"<Breaker {summarize(self.view(now), self.settings, self._failure_stats.trip_ratio)}>"

    def allow(self, now: float) -> GuardPermit | GuardRejection:
        """Request one call. The caller records the outcome of a returned permit exactly once."""
        permit = self.fast.permit
        if permit is not None:
            self.fast.calls += 1
            return permit
        answer = self._decide_call(now)
        if isinstance(answer, GuardPermit):
            self.fast.calls += self.machine.state is not BreakerState.DISABLED
            return answer
        if self.operator.metrics_only:
            self.counts.would_reject += 1
            self.fast.calls += 1
            return UNRECORDED_PERMIT
        self.counts.rejected[answer.cause] += 1
        return answer

    def rejection(self, now: float) -> GuardRejection | None:
        """Return the rejection that `allow` would return, or None. Has no effects."""
        state = self.state(now)
        if self.operator.metrics_only or state is BreakerState.DISABLED:
            return None
        if state is _HALF_OPEN:
            return self._probe_rejection(now)
        if state is _CLOSED or state is _RAMPING:
            if self._in_flight.is_bounded and len(self._in_flight.serials) >= self._in_flight.max_calls:
                return self._reject(state, BreakerCause.IN_FLIGHT)
            if state is _CLOSED or self._ramp.would_admit(now):
                return None
            return self._reject(state, BreakerCause.RAMP)
        return self._open_rejection(now)

    def record(self, permit: GuardPermit, outcome: Outcome, now: float) -> None:
        """Record the outcome of a call.

        A permit is stale if the state has changed, its probe lease has expired, or its outcome was recorded
        before. A stale permit only increments ``stale_results``.
        """
        machine = self.machine
        state = machine.state
        if permit.generation != machine.generation:
            # Negative generations mark permits that are never counted (`UNRECORDED_PERMIT`), so they are not
            # stale.
            self.counts.stale_results += permit.generation >= 0
        elif state is _HALF_OPEN:
            if self._probes.release(permit.serial):
                self._finish_probe(outcome, now)
            else:
                self.counts.stale_results += 1
        elif state is _CLOSED or state is _RAMPING:
            if not self._in_flight.is_bounded and not permit.serial:
                self._count_result(outcome, now)
            elif permit.serial in self._in_flight.serials:
                self._in_flight.serials.remove(permit.serial)
                self._count_result(outcome, now)
            else:
                self.counts.stale_results += 1
        elif state is _OPEN:
            self.counts.stale_results += 1

    def record_failure_text(self, text: str) -> None:
        """Store the text of the newest failure; called before its outcome is recorded.

        Args:
            text: type and message; truncated to `LAST_FAILURE_MAX_CHARS` characters.
        """
        self._failure_stats.last_failure = text[:LAST_FAILURE_MAX_CHARS]

    def state(self, now: float) -> BreakerState:
        """Return the state visible to callers: an open breaker reads half-open after its open period."""
        return self.machine.visible_state(now)

    def view(self, now: float) -> BreakerView:
        """Return an immutable view of all figures. Has no effects."""
        machine = self.machine
        counts = self._failure_stats.counts(now)
        probes = len(self._probes)
        return BreakerView(
            name=self.name,
            state=machine.visible_state(now),
            machine=machine.state,
            metrics_only=self.operator.metrics_only,
            cause=machine.cause,
            generation=machine.generation,
            streak=self._failure_stats.streak,
            window_calls=counts.calls,
            window_failures=counts.failures,
            window_slow=counts.slow,
            probes=probes,
            probe_successes=self._probes.successes,
            rounds=machine.rounds,
            opened_s=machine.opened_s,
            retry_after_s=machine.retry_after_s(now),
            in_flight=probes + len(self._in_flight.serials),
            calls=self.fast.calls,
            rejected={cause: count for cause, count in self.counts.rejected.items() if count},
            would_reject=self.counts.would_reject,
            stale_results=self.counts.stale_results,
            classifier_errors=self.counts.classifier_errors,
            last_failure=self._failure_stats.last_failure,
            shared=self.fleet_position.lease_required,
        )

    def drain(self) -> list[BreakerTransition]:
        """Take the transitions that were not yet published, oldest first."""
        return self.machine.drain()

    def open_for(self, duration_s: float, cause: BreakerCause, now: float) -> None:
        """Open for the period that the dependency requests; the following round waits as usual.

        An open breaker stays open until the later of the two ends. An operator's decision takes precedence.

        Args:
            duration_s: seconds from now; capped at ``open_max_s`` or `MAX_RETRY_AFTER_S`.
            cause: of the transition.
            now: monotonic seconds.
        """
        max_s = self.settings.open_max_s or MAX_RETRY_AFTER_S
        wait_s = max(0.0, min(duration_s, max_s))
        if self.machine.state is not _OPEN or wait_s > self.machine.remaining_s(now):
            self._transition(BreakerEvent.RETRY_AFTER, now, wait_s=wait_s, cause=cause)

    def force_open(self, now: float) -> None:
        """Reject all calls until the next operator command."""
        self._operate(BreakerEvent.FORCE, now)

    def disable(self, now: float) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self._operate(BreakerEvent.DISABLE, now)

    def metrics_only(self, now: float) -> None:
        """Reset, admit all calls and only count the calls that would be rejected.

        Lasts until the next operator command in this process, or until an operator opens or disables the
        breakers of the fleet.
        """
        self._operate(BreakerEvent.METRICS_ONLY, now)

    def reset(self, now: float) -> None:
        """Reset to closed and enforcing."""
        self._operate(BreakerEvent.RESET, now)

    def grant_probe(self, lease: ProbeLease, now: float) -> GuardPermit | GuardRejection:
        """Start a probe with the lease that the fleet has granted.

        Returns:
            The permit of the probe, with ``fence`` above 0. If the state has changed since the lease was
            requested: the answer of `allow`, which is an ordinary permit with ``fence`` 0, or a rejection.
            The lease is unused then and must be returned.
        """
        if self.state(now) is not _HALF_OPEN:
            return self.allow(now)
        if self.machine.state is _OPEN:
            self._transition(BreakerEvent.WAITED, now, rounds=lease.rounds)
        self.fleet_position.known_version = max(self.fleet_position.known_version, lease.version)
        self._probes.expire(now)
        self.fast.calls += 1
        return self._start_probe(now, lease.fence)

    def adopt(self, remote: RemoteBreakerState, now: float) -> None:
        """Apply a newer state of the fleet.

        A closed or ramping process ignores that the fleet has closed. A process that is already in the remote
        state keeps its own cause. An operator's decision in this process holds until the fleet reports an
        operator command, the same or another.

        Args:
            remote: ignored unless its ``version`` is above all applied before.
            now: monotonic seconds.
        """
        machine = self.machine
        by_operator = remote.cause is BreakerCause.OPERATOR or remote.state in OPERATOR_STATES
        if remote.version <= self.fleet_position.known_version or (
            self.operator.is_local and not by_operator
        ):
            return
        self.fleet_position.known_version = remote.version
        self.operator.is_local = False
        if remote.state in OPERATOR_STATES:
            self.operator.metrics_only = False
        # Already in the remote state: the local cause is the more precise one.
        cause = machine.cause if machine.state is remote.state else None
        self._transition(
            machine.record_remote(remote), now, wait_s=remote.wait_s, cause=cause, rounds=remote.rounds
        )

    def _decide_call(self, now: float) -> GuardPermit | GuardRejection:
        machine = self.machine
        state = machine.state
        if state is _OPEN:
            left_s = machine.remaining_s(now)
            if left_s > 0.0:
                return self._reject(_OPEN, machine.rejection_cause, left_s)
            self._transition(BreakerEvent.WAITED, now)
            return self._try_probe(now)
        if state is _HALF_OPEN:
            return self._try_probe(now)
        if state is _CLOSED or state is _RAMPING:
            return self._admit(now)
        return self.fast.shared_permit if state is BreakerState.DISABLED else self._open_rejection(now)

    def _admit(self, now: float) -> GuardPermit | GuardRejection:
        is_bounded = self._in_flight.is_bounded
        if is_bounded and len(self._in_flight.serials) >= self._in_flight.max_calls:
            return self._reject(self.machine.state, BreakerCause.IN_FLIGHT)
        if self.machine.state is _RAMPING:
            if self._ramp.is_done(now):
                self._transition(BreakerEvent.RAMP_DONE, now)
            elif not self._ramp.admit(now):
                return self._reject(_RAMPING, BreakerCause.RAMP)
        if not is_bounded:
            return self.fast.shared_permit
        return GuardPermit(self.machine.generation, self._in_flight.acquire())

    def _try_probe(self, now: float) -> GuardPermit | GuardRejection:
        self._probes.expire(now)
        rejection = self._probe_rejection(now)
        if rejection is None:
            return self._start_probe(now)
        if rejection.lease_wanted:
            self.fleet_position.record_lease_request(now)
        return rejection

    def _probe_rejection(self, now: float) -> GuardRejection | None:
        lease_required = self.fleet_position.lease_required and not self.operator.metrics_only
        if self._probes.is_full(now, lease_required):
            return self._reject(_HALF_OPEN, BreakerCause.TRIAL)
        if not lease_required:
            return None
        wanted = self.fleet_position.is_lease_request_due(now)
        return self._reject(_HALF_OPEN, BreakerCause.TRIAL, lease_wanted=wanted)

    def _start_probe(self, now: float, fence: int = 0) -> GuardPermit:
        serial = self._in_flight.next_serial()
        self._probes.acquire(serial, now)
        return GuardPermit(self.machine.generation, serial, fence)

    def _finish_probe(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.FAILURE or outcome is Outcome.SLOW:
            self._transition(BreakerEvent.PROBE_FAILED, now)
        elif outcome is Outcome.SUCCESS and self._probes.record_success():
            event = BreakerEvent.PROBES_SUCCEEDED
            self._transition(BreakerEvent.PROBES_SUCCEEDED_RAMP if self.settings.ramp else event, now)

    def _count_result(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.NEUTRAL:
            return
        slow = outcome is Outcome.SLOW
        if outcome is Outcome.SUCCESS:
            self._ramp.record_success()
        failed = outcome is Outcome.FAILURE or (slow and self.settings.slow_is is SlowCallMode.FAILURE)
        stats = self._failure_stats
        event = stats.record(failed, slow, now)
        if event is None:
            self.fast.success_is_noop = stats.success_is_noop
        else:
            trip_ratio = stats.trip_ratio
            self._transition(event, now)
            stats.trip_ratio = trip_ratio  # describes the opening until the next transition

    def _operate(self, event: BreakerEvent, now: float) -> None:
        self.operator.metrics_only = event is BreakerEvent.METRICS_ONLY
        self._transition(event, now, rounds=0)
        self.operator.is_local = self.machine.state in OPERATOR_STATES

    def _transition(
        self,
        event: BreakerEvent,
        now: float,
        *,
        wait_s: float | None = None,
        cause: BreakerCause | None = None,
        rounds: int | None = None,
    ) -> None:
        if self.machine.transition(event, now, wait_s=wait_s, cause=cause, rounds=rounds):
            self._ramp.start(now)
            self._start_generation()

    def _start_generation(self) -> None:
        self._failure_stats.clear()
        self._probes.clear()
        self._in_flight.serials.clear()
        machine, fast = self.machine, self.fast
        fast.shared_permit = GuardPermit(machine.generation)
        fast.success_is_noop = self._failure_stats.success_is_noop
        needs_no_check = not self.operator.metrics_only and not self._in_flight.is_bounded
        fast.permit = fast.shared_permit if machine.state is _CLOSED and needs_no_check else None

    def _open_rejection(self, now: float) -> GuardRejection:
        machine = self.machine
        return self._reject(machine.state, machine.rejection_cause, machine.retry_after_s(now))

    def _reject(
        self, state: BreakerState, cause: BreakerCause, after_s: float = 0.0, *, lease_wanted: bool = False
    ) -> GuardRejection:
        last_failure = self._failure_stats.last_failure
        return build_rejection(self.machine.name, state, cause, after_s, last_failure, lease_wanted)
