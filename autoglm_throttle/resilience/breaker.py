"""The circuit breaker as a pure state machine: no clock, lock or I/O; every method receives the time.

The state transitions stand in `transitions`. `failure_stats` decides when a closed breaker opens.
`half_open_probes` and `ramp` decide which calls are admitted meanwhile. Each change of state starts a new
generation. A result of an earlier generation is counted as stale and changes nothing, so a late result never
closes, opens or prolongs anything. A probe has a lease, so a hanging probe costs a wait and never blocks the
breaker. Other calls have no lease: with ``max_in_flight`` a call holds its slot until its result is recorded,
however late, and that result counts. A clock that steps back is treated as standing still.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.resilience.breaker_rules import BreakerRules
from autoglm_throttle.resilience.breaker_summary import summarize
from autoglm_throttle.resilience.failure_stats import FailureStats
from autoglm_throttle.resilience.half_open_probes import HalfOpenProbes
from autoglm_throttle.resilience.ramp import RampUp
from autoglm_throttle.resilience.rejections import build_rejection
from autoglm_throttle.resilience.state_machine import BreakerStateMachine
from autoglm_throttle.resilience.store import ProbeLease, RemoteBreakerState
from autoglm_throttle.resilience.transitions import OPERATOR_STATES, BreakerEvent
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

LEASE_REQUEST_INTERVAL_S: Final = 0.05
"""Seconds between two calls that request the fleet's lease: the default deadline of the store."""

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
        rules: complete and validated.
        now: monotonic seconds.
        lease_request_interval_s: seconds between two calls that may request the fleet's lease, > 0.
    """

    __slots__ = (
        *(
            "_lease_requested_s",
            "_bounded",
            "_is_operated_here",
            "_failure_stats",
            "_trip_ratio",
            "_in_flight",
            "_known_version",
        ),
        *(
            "_lease_request_interval_s",
            "_state_machine",
            "_now",
            "_ramp",
            "_rejections",
            "_serial",
            "_shared_permit",
            "_probes",
        ),
        *(
            "_metrics_only",
            "calls",
            "classifier_errors",
            "success_is_noop",
            "fast_permit",
            "last_failure",
            "lease_required",
            "name",
        ),
        *("rules", "stale_results", "would_reject"),
    )

    def __init__(
        self,
        name: str,
        rules: BreakerRules,
        now: float,
        lease_request_interval_s: float = LEASE_REQUEST_INTERVAL_S,
    ) -> None:
        self.name: str = name
        self.rules: BreakerRules = rules
        self.lease_required: bool = False
        """Whether a probe needs the fleet's lease; set by the owner."""
        self.fast_permit: GuardPermit | None
        """The shared permit if no check is needed (closed, enforcing, ``max_in_flight`` unset), else None."""
        self.success_is_noop: bool
        """Whether recording a success for `fast_permit` would change nothing."""
        self.calls: int = 0
        """Admitted calls. A caller that uses `fast_permit` directly increments it."""
        self.stale_results: int = 0
        """Results of an earlier generation, and second results of one call."""
        self.classifier_errors: int = 0
        """Counted by the owner."""
        self.would_reject: int = 0
        """Admitted calls that an enforcing breaker would have rejected."""
        self.last_failure: str = ""
        """Type and text of the newest failure."""
        start = BreakerState.DISABLED if rules.mode is BreakerMode.DISABLED else BreakerState.CLOSED
        self._state_machine = BreakerStateMachine(name, rules, start)
        self._probes = HalfOpenProbes(rules)
        self._failure_stats = FailureStats(rules)
        self._ramp = RampUp(rules.ramp, rules.ramp_step_s)
        self._in_flight: set[int] = set()
        self._bounded = rules.max_in_flight > 0
        self._metrics_only = rules.mode is BreakerMode.METRICS_ONLY
        self._serial = 0
        self._known_version = -1
        self._is_operated_here = False
        self._lease_request_interval_s = lease_request_interval_s
        self._lease_requested_s = -math.inf
        self._rejections = dict.fromkeys(BreakerCause, 0)
        self._now = now
        self._start_generation()

    @property
    def generation(self) -> int:
        """Generation number: rises by one with each change of state. Each permit carries its own."""
        return self._state_machine.generation

    def __repr__(self) -> str:
        return f"<Breaker {summarize(self.view(self._now), self.rules, self._trip_ratio)}>"

    def allow(self, now: float) -> GuardPermit | GuardRejection:
        """Request one call. The caller records the outcome of a returned permit exactly once."""
        self._now = now
        permit = self.fast_permit
        if permit is not None:
            self.calls += 1
            return permit
        answer = self._decide_call(now)
        if isinstance(answer, GuardPermit):
            self.calls += self._state_machine.state is not BreakerState.DISABLED
            return answer
        if self._metrics_only:
            self.would_reject += 1
            self.calls += 1
            return UNRECORDED_PERMIT
        self._rejections[answer.cause] += 1
        return answer

    def rejection(self, now: float) -> GuardRejection | None:
        """Return the rejection that `allow` would return, or None. Has no effects."""
        state = self.state(now)
        if self._metrics_only or state is BreakerState.DISABLED:
            return None
        if state is _HALF_OPEN:
            return self._probe_rejection(now)
        if state is _CLOSED or state is _RAMPING:
            if self._bounded and len(self._in_flight) >= self.rules.max_in_flight:
                return build_rejection(self.name, state, BreakerCause.IN_FLIGHT, 0.0, self.last_failure)
            if state is _CLOSED or self._ramp.would_admit(now):
                return None
            return build_rejection(self.name, state, BreakerCause.RAMP, 0.0, self.last_failure)
        return self._open_rejection(now)

    def record(self, permit: GuardPermit, outcome: Outcome, now: float) -> None:
        """Record the outcome of a call.

        A permit is stale if the state has changed, its probe lease has expired, or its outcome was recorded
        before. A stale permit only increments ``stale_results``.
        """
        self._now = now
        machine = self._state_machine
        state = machine.state
        if permit.generation != machine.generation:
            # Negative generations mark permits that are never counted (`UNRECORDED_PERMIT`), so they are not
            # stale.
            self.stale_results += permit.generation >= 0
        elif state is _HALF_OPEN:
            if self._probes.release(permit.serial):
                self._finish_probe(outcome, now)
            else:
                self.stale_results += 1
        elif state is _CLOSED or state is _RAMPING:
            if not self._bounded and not permit.serial:
                self._count_result(outcome, now)
            elif permit.serial in self._in_flight:
                self._in_flight.remove(permit.serial)
                self._count_result(outcome, now)
            else:
                self.stale_results += 1
        elif state is _OPEN:
            self.stale_results += 1

    def record_failure_text(self, text: str) -> None:
        """Store the text of the newest failure; called before its outcome is recorded.

        Args:
            text: type and message; truncated to `LAST_FAILURE_MAX_CHARS` characters.
        """
        self.last_failure = text[:LAST_FAILURE_MAX_CHARS]

    def state(self, now: float) -> BreakerState:
        """Return the state visible to callers: an open breaker reads half-open after its open period."""
        return self._state_machine.visible_state(now)

    def view(self, now: float) -> BreakerView:
        """Return an immutable view of all figures. Has no effects."""
        machine = self._state_machine
        counts = self._failure_stats.counts(now)
        probes = len(self._probes)
        return BreakerView(
            name=self.name,
            state=machine.visible_state(now),
            machine=machine.state,
            metrics_only=self._metrics_only,
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
            in_flight=probes + len(self._in_flight),
            calls=self.calls,
            rejected={cause: count for cause, count in self._rejections.items() if count},
            would_reject=self.would_reject,
            stale_results=self.stale_results,
            classifier_errors=self.classifier_errors,
            last_failure=self.last_failure,
            shared=self.lease_required,
        )

    def drain(self) -> list[BreakerTransition]:
        """Take the transitions that were not yet published, oldest first."""
        return self._state_machine.drain()

    def open_for(self, duration_s: float, cause: BreakerCause, now: float) -> None:
        """Open for the period that the dependency requests; the following round waits as usual.

        An open breaker stays open until the later of the two ends. An operator's decision takes precedence.

        Args:
            duration_s: seconds from now; capped at ``open_max_s`` or `MAX_RETRY_AFTER_S`.
            cause: of the transition.
            now: monotonic seconds.
        """
        self._now = now
        max_s = self.rules.open_max_s or MAX_RETRY_AFTER_S
        wait_s = max(0.0, min(duration_s, max_s))
        if self._state_machine.state is not _OPEN or wait_s > self._state_machine.remaining_s(now):
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
        if self._state_machine.state is _OPEN:
            self._transition(BreakerEvent.WAITED, now, rounds=lease.rounds)
        self._known_version = max(self._known_version, lease.version)
        self._probes.expire(now)
        self.calls += 1
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
        self._now = now
        machine = self._state_machine
        by_operator = remote.cause is BreakerCause.OPERATOR or remote.state in OPERATOR_STATES
        if remote.version <= self._known_version or (self._is_operated_here and not by_operator):
            return
        self._known_version = remote.version
        self._is_operated_here = False
        if remote.state in OPERATOR_STATES:
            self._metrics_only = False
        # Already in the remote state: the local cause is the more precise one.
        cause = machine.cause if machine.state is remote.state else None
        self._transition(
            machine.record_remote(remote), now, wait_s=remote.wait_s, cause=cause, rounds=remote.rounds
        )

    def reset_after_fork(self, now: float) -> None:
        """Drop all calls in flight in a forked child: they belong to the parent process."""
        self._now = now
        # A new generation makes the late results of the parent's calls stale in this process.
        self._state_machine.generation += 1
        won = self._probes.successes
        self._probes.clear()
        self._probes.successes = won
        self._in_flight.clear()
        self._update_shared_permit()

    def _decide_call(self, now: float) -> GuardPermit | GuardRejection:
        machine = self._state_machine
        state = machine.state
        if state is _OPEN:
            left_s = machine.remaining_s(now)
            if left_s > 0.0:
                return build_rejection(self.name, _OPEN, machine.rejection_cause, left_s, self.last_failure)
            self._transition(BreakerEvent.WAITED, now)
            return self._try_probe(now)
        if state is _HALF_OPEN:
            return self._try_probe(now)
        if state is _CLOSED or state is _RAMPING:
            return self._admit(now)
        return self._shared_permit if state is BreakerState.DISABLED else self._open_rejection(now)

    def _admit(self, now: float) -> GuardPermit | GuardRejection:
        if self._bounded and len(self._in_flight) >= self.rules.max_in_flight:
            return build_rejection(
                self.name, self._state_machine.state, BreakerCause.IN_FLIGHT, 0.0, self.last_failure
            )
        if self._state_machine.state is _RAMPING:
            if self._ramp.is_done(now):
                self._transition(BreakerEvent.RAMP_DONE, now)
            elif not self._ramp.admit(now):
                return build_rejection(self.name, _RAMPING, BreakerCause.RAMP, 0.0, self.last_failure)
        if not self._bounded:
            return self._shared_permit
        self._serial += 1
        self._in_flight.add(self._serial)
        return GuardPermit(self._state_machine.generation, self._serial)

    def _try_probe(self, now: float) -> GuardPermit | GuardRejection:
        self._probes.expire(now)
        rejection = self._probe_rejection(now)
        if rejection is None:
            return self._start_probe(now)
        if rejection.lease_wanted:
            self._lease_requested_s = now
        return rejection

    def _probe_rejection(self, now: float) -> GuardRejection | None:
        lease_required = self.lease_required and not self._metrics_only
        if self._probes.is_full(now, lease_required):
            return build_rejection(self.name, _HALF_OPEN, BreakerCause.TRIAL, 0.0, self.last_failure)
        if not lease_required:
            return None
        # The lower bound treats a clock that stepped back as expired, so the lease is requested again.
        wanted = not 0.0 <= now - self._lease_requested_s < self._lease_request_interval_s
        return build_rejection(self.name, _HALF_OPEN, BreakerCause.TRIAL, 0.0, self.last_failure, wanted)

    def _start_probe(self, now: float, fence: int = 0) -> GuardPermit:
        self._serial += 1
        self._probes.acquire(self._serial, now)
        return GuardPermit(self._state_machine.generation, self._serial, fence)

    def _finish_probe(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.FAILURE or outcome is Outcome.SLOW:
            self._transition(BreakerEvent.PROBE_FAILED, now)
        elif outcome is Outcome.SUCCESS and self._probes.record_success():
            self._transition(
                BreakerEvent.PROBES_SUCCEEDED_RAMP if self.rules.ramp else BreakerEvent.PROBES_SUCCEEDED, now
            )

    def _count_result(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.NEUTRAL:
            return
        slow = outcome is Outcome.SLOW
        if outcome is Outcome.SUCCESS:
            self._ramp.record_success()
        failed = outcome is Outcome.FAILURE or (slow and self.rules.slow_is is SlowCallMode.FAILURE)
        event = self._failure_stats.record(failed, slow, now)
        if event is None:
            self.success_is_noop = self._failure_stats.success_is_noop
        else:
            self._transition(event, now)
            self._trip_ratio = self._failure_stats.trip_ratio

    def _operate(self, event: BreakerEvent, now: float) -> None:
        self._metrics_only = event is BreakerEvent.METRICS_ONLY
        self._transition(event, now, rounds=0)
        self._is_operated_here = self._state_machine.state in OPERATOR_STATES

    def _transition(
        self,
        event: BreakerEvent,
        now: float,
        *,
        wait_s: float | None = None,
        cause: BreakerCause | None = None,
        rounds: int | None = None,
    ) -> None:
        if self._state_machine.transition(event, now, wait_s=wait_s, cause=cause, rounds=rounds):
            self._ramp.start(now)
            self._start_generation()

    def _start_generation(self) -> None:
        self._trip_ratio = ""
        self._failure_stats.clear()
        self._probes.clear()
        self._in_flight.clear()
        self.success_is_noop = self._failure_stats.success_is_noop
        self._update_shared_permit()

    def _update_shared_permit(self) -> None:
        self._shared_permit = GuardPermit(self._state_machine.generation)
        is_fast = self._state_machine.state is _CLOSED and not self._metrics_only and not self._bounded
        self.fast_permit = self._shared_permit if is_fast else None

    def _open_rejection(self, now: float) -> GuardRejection:
        machine = self._state_machine
        after_s = machine.retry_after_s(now)
        return build_rejection(self.name, machine.state, machine.rejection_cause, after_s, self.last_failure)
