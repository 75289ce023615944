"""The circuit breaker as a pure state machine: no clock, lock or I/O; every method receives the time.

Each change of state starts a new generation, and a result of an earlier one is counted as stale and changes
nothing. A probe has a lease, so a hanging probe never blocks the breaker. With ``max_in_flight`` each call
has one, and changes of state do not forget the calls in flight. A clock that steps back is treated as
standing still.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.resilience.classify import FAILURE_TEXT_MAX_CHARS
from autoglm_throttle.resilience.half_open import CALL_LEASE_S, CallSlots, LeasedSlots, RampUp
from autoglm_throttle.resilience.outcomes import FailureStats
from autoglm_throttle.resilience.transitions import OPERATOR_STATES, BreakerEvent, BreakerStateMachine
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    BreakerView,
    GuardPermit,
    GuardRejection,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
    SlowCallMode,
)

# Longest accepted Retry-After in seconds if ``open_max_s`` is None: protects against a wrong value.
MAX_RETRY_AFTER_S: Final = 300.0

# Permit of a call that an enforcing breaker would have rejected: its result is not counted.
UNRECORDED_PERMIT: Final = GuardPermit(generation=-1)

# Read on every call: a module-level name costs a fraction of an enum member look-up.
_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_RAMPING: Final = BreakerState.RAMPING
_UNBOUNDED: Final = math.inf


class FastPath:
    """Flags and counters of one guard for calls without a lock; decorated functions hold it."""

    __slots__ = (
        *("calls", "is_direct", "is_synced", "is_untimed", "noop_permit", "open_rejections", "permit"),
        *("shared_permit", "success_is_noop"),
    )

    def __init__(self, settings: BreakerSettings) -> None:
        # Permit of all calls of this generation that need no slot.
        self.shared_permit: GuardPermit = GuardPermit(0)
        # `shared_permit` if no check is needed (closed, enforcing, ``max_in_flight`` unset), else None.
        self.permit: GuardPermit | None = None
        self.success_is_noop: bool = False  # whether recording a success for `permit` would change nothing
        self.noop_permit: GuardPermit | None = None  # `permit` if so, else None
        # Whether a block needs no clock.
        self.is_untimed: bool = settings.slow_call_s is None and settings.timeout_s is None
        self.is_synced: bool = False  # whether the fleet's first state is known, or not needed
        # Whether only the breaker decides, by `permit`: `is_synced`, no load shedding, no fallback.
        self.is_direct: bool = False
        self.clear_counts()

    def clear_counts(self) -> None:
        """Set the counters to zero. Concurrent increments without the lock may be lost."""
        self.calls: int = 0  # Admitted calls. A caller that uses `permit` directly increments it.
        self.open_rejections: int = 0  # Rejections without the lock, while the breaker was known to be open


class Breaker:
    """One circuit breaker. Its owner must serialize all calls of its methods.

    It takes over the commands of operators and the fast path of a predecessor, whose permits are stale here.
    """

    def __init__(self, name: str, settings: BreakerSettings, predecessor: Breaker | None = None) -> None:
        self.settings: BreakerSettings = settings
        self.fast: FastPath = FastPath(settings) if predecessor is None else predecessor.fast
        self.fast.clear_counts()
        self.machine: BreakerStateMachine = BreakerStateMachine(
            name, settings, None if predecessor is None else predecessor.machine
        )
        self._rejected: dict[BreakerCause, int] = dict.fromkeys(BreakerCause, 0)
        self._counted_rejections = 0  # of `open_rejections`: those that are counted in `_rejected`
        self.would_reject: int = 0
        self.stale_results: int = 0
        self.classifier_errors: int = 0  # counted by the owner
        self.known_version: int = -1  # version of the newest state of the fleet that was applied
        self.slots: CallSlots = CallSlots(settings)
        # Slots of all calls in flight, of any generation, with ``max_in_flight``; else there are none.
        self._calls = LeasedSlots(settings.trial_lease_s or max(settings.lease_s, CALL_LEASE_S))
        self._serial = 0  # of the newest call with a slot
        self._max_in_flight: float = settings.max_in_flight or _UNBOUNDED
        self._stats = FailureStats(settings)
        self._ramp = RampUp(settings.ramp, settings.ramp_step_s)
        self._start_generation()

    @property
    def generation(self) -> int:
        """Generation number: rises by one with each change of state."""
        return self.machine.generation

    def allow(self, now: float) -> GuardPermit | GuardRejection:
        """Request one call; the caller records its outcome exactly once."""
        permit = self.fast.permit
        if permit is not None:
            self.fast.calls += 1
            return permit
        answer = self._decide_call(now)
        if isinstance(answer, GuardPermit):
            self.fast.calls += self.machine.state is not BreakerState.DISABLED
            return answer
        if self.machine.metrics_only:
            self.would_reject += 1
            self.fast.calls += 1
            return UNRECORDED_PERMIT
        self._rejected[answer.cause] += 1
        return answer

    def rejection(self, now: float) -> GuardRejection | None:
        """Return the rejection that `allow` would return, or None. Has no effects."""
        state = self.state(now)
        if self.machine.metrics_only or state is BreakerState.DISABLED:
            return None
        if state is _HALF_OPEN:
            return self._probe_rejection(now)
        if state is _CLOSED or state is _RAMPING:
            if self._calls.count_held(now) >= self._max_in_flight:
                return self._reject(state, BreakerCause.IN_FLIGHT)
            if state is _CLOSED or self._ramp.would_admit(now):
                return None
            return self._reject(state, BreakerCause.RAMP)
        return self._open_rejection(now)

    def record(self, permit: GuardPermit, outcome: Outcome, now: float) -> None:
        """Record the outcome of a call; only count it as stale if its permit no longer holds."""
        machine, serial = self.machine, permit.serial
        state = machine.state
        is_held = self._calls.release(serial)
        if permit.generation != machine.generation:
            # Permits of negative generations are never counted (`UNRECORDED_PERMIT`), so they are not stale.
            self.stale_results += permit.generation >= 0
        elif state is _HALF_OPEN and self.slots.release(serial):
            self._finish_probe(outcome, now)
        elif (state is _CLOSED or state is _RAMPING) and (
            is_held if serial else self._max_in_flight is _UNBOUNDED
        ):
            self._count_result(outcome, now)
        elif state is not BreakerState.DISABLED and state is not BreakerState.FORCED_OPEN:
            self.stale_results += 1

    def record_failure_text(self, text: str) -> None:
        """Store type and message of the newest failure; called before its outcome is recorded."""
        self._stats.last_failure = text[:FAILURE_TEXT_MAX_CHARS]

    def state(self, now: float) -> BreakerState:
        """Return the state visible to callers: an open breaker reads half-open after its open period."""
        return self.machine.visible_state(now)

    def view(self, now: float) -> BreakerView:
        """Return an immutable view of all figures. Has no effects."""
        machine, slots, stats = self.machine, self.slots, self._stats
        window_calls, window_failures, window_slow = stats.counts(now)
        probes = len(slots.acquired)
        self._count_open_rejections()
        return BreakerView(
            name=machine.name,
            state=machine.visible_state(now),
            machine=machine.state,
            metrics_only=machine.metrics_only,
            cause=machine.cause,
            generation=machine.generation,
            streak=stats.streak,
            window_calls=window_calls,
            window_failures=window_failures,
            window_slow=window_slow,
            probes=probes,
            probe_successes=slots.successes,
            rounds=machine.rounds,
            opened_s=machine.opened_s,
            retry_after_s=machine.retry_after_s(now),
            in_flight=probes if self._max_in_flight is _UNBOUNDED else self._calls.count_held(now),
            calls=self.fast.calls,
            rejected={cause: count for cause, count in self._rejected.items() if count},
            would_reject=self.would_reject,
            stale_results=self.stale_results,
            classifier_errors=self.classifier_errors,
            last_failure=stats.last_failure,
            shared=slots.lease_required,
        )

    def open_for(self, duration_s: float, now: float) -> None:
        """Open for the period that the dependency requests, at most ``open_max_s`` or `MAX_RETRY_AFTER_S`.

        An open breaker stays open until the later of the two ends. An operator's decision takes precedence.
        """
        wait_s = max(0.0, min(duration_s, self.settings.open_max_s or MAX_RETRY_AFTER_S))
        if self.machine.state is not _OPEN or wait_s > self.machine.remaining_s(now):
            self._transition(BreakerEvent.RETRY_AFTER, now, wait_s=wait_s)

    def operate(self, event: BreakerEvent, now: float) -> None:
        """Apply a command of an operator: ``FORCE``, ``DISABLE``, ``METRICS_ONLY`` or ``RESET``."""
        machine = self.machine
        machine.metrics_only = event is BreakerEvent.METRICS_ONLY
        self._transition(event, now, rounds=0)
        machine.is_commanded = machine.state in OPERATOR_STATES

    def grant_probe(self, lease: ProbeLease, now: float) -> GuardPermit | GuardRejection:
        """Start a probe with the lease that the fleet has granted; its permit has a ``fence`` above 0.

        If the state has changed meanwhile, the answer is that of `allow`, and the lease must be returned.
        """
        if self.state(now) is not _HALF_OPEN:
            return self.allow(now)
        if self.machine.state is _OPEN:
            self._transition(BreakerEvent.WAITED, now, rounds=lease.rounds)
        self.known_version = max(self.known_version, lease.version)
        self.slots.expire(now)
        self.fast.calls += 1
        return self._acquire_slot(now, lease.fence)

    def adopt(self, remote: RemoteBreakerState, now: float) -> None:
        """Apply a state of the fleet that is newer than all applied before.

        An operator's decision in this process holds until the fleet reports an operator command.
        """
        machine = self.machine
        by_operator = remote.cause is BreakerCause.OPERATOR or remote.state in OPERATOR_STATES
        if remote.version <= self.known_version or (machine.is_commanded and not by_operator):
            return
        self.known_version = remote.version
        machine.is_commanded = False
        if remote.state in OPERATOR_STATES:
            machine.metrics_only = False
        self._transition(machine.remote_event(remote), now, wait_s=remote.wait_s, rounds=remote.rounds)

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
        if self._is_full(now):
            return self._reject(self.machine.state, BreakerCause.IN_FLIGHT)
        if self.machine.state is _RAMPING:
            if self._ramp.is_done(now):
                self._transition(BreakerEvent.RAMP_DONE, now)
            elif not self._ramp.admit(now):
                return self._reject(_RAMPING, BreakerCause.RAMP)
        if self._max_in_flight is _UNBOUNDED:
            return self.fast.shared_permit
        return self._acquire_slot(now)

    def _is_full(self, now: float) -> bool:
        calls = self._calls
        if len(calls.acquired) < self._max_in_flight:
            return False
        calls.expire(now)
        return len(calls.acquired) >= self._max_in_flight

    def _try_probe(self, now: float) -> GuardPermit | GuardRejection:
        self.slots.expire(now)
        rejection = self._probe_rejection(now)
        if rejection is None:
            return self._acquire_slot(now)
        if rejection.lease_wanted:
            self.slots.requested_s = now
        return rejection

    def _probe_rejection(self, now: float) -> GuardRejection | None:
        lease_required = self.slots.lease_required and not self.machine.metrics_only
        if self.slots.is_full(now, lease_required):
            return self._reject(_HALF_OPEN, BreakerCause.TRIAL)
        if self._calls.count_held(now) >= self._max_in_flight:
            return self._reject(_HALF_OPEN, BreakerCause.IN_FLIGHT)
        if not lease_required:
            return None
        wanted = self.slots.is_lease_request_due(now)
        return self._reject(_HALF_OPEN, BreakerCause.TRIAL, lease_wanted=wanted)

    def _acquire_slot(self, now: float, fence: int = 0) -> GuardPermit:
        self._serial = serial = self._serial + 1
        if self.machine.state is _HALF_OPEN:
            self.slots.acquire(serial, now)
        if self._max_in_flight is not _UNBOUNDED:
            self._calls.acquire(serial, now)
        return GuardPermit(self.machine.generation, serial, fence)

    def _finish_probe(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.FAILURE or outcome is Outcome.SLOW:
            self._transition(BreakerEvent.PROBE_FAILED, now)
        elif outcome is Outcome.SUCCESS and self.slots.record_success():
            event = BreakerEvent.PROBES_SUCCEEDED
            self._transition(BreakerEvent.PROBES_SUCCEEDED_RAMP if self.settings.ramp else event, now)

    def _count_result(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.NEUTRAL:
            return
        slow = outcome is Outcome.SLOW
        if outcome is Outcome.SUCCESS:
            self._ramp.has_success = True
        failed = outcome is Outcome.FAILURE or (slow and self.settings.slow_is is SlowCallMode.FAILURE)
        event = self._stats.record(failed, slow, now)
        if event is None:
            self._update_noop()
        else:
            self._transition(event, now)

    def _transition(
        self, event: BreakerEvent, now: float, *, wait_s: float | None = None, rounds: int | None = None
    ) -> None:
        self._count_open_rejections()
        if self.machine.transition(event, now, wait_s=wait_s, rounds=rounds):
            self._ramp.start(now)
            self._start_generation()

    def _count_open_rejections(self) -> None:
        # A difference of a growing total: a concurrent increment may be lost, but none is counted twice.
        count = self.fast.open_rejections
        self._rejected[self.machine.rejection_cause] += count - self._counted_rejections
        self._counted_rejections = count

    def _start_generation(self) -> None:
        self._stats.clear()
        self.slots.clear()
        machine, fast = self.machine, self.fast
        fast.shared_permit = GuardPermit(machine.generation)
        needs_no_check = not machine.metrics_only and self._max_in_flight is _UNBOUNDED
        fast.permit = fast.shared_permit if machine.state is _CLOSED and needs_no_check else None
        self._update_noop()

    def _update_noop(self) -> None:
        fast = self.fast
        fast.success_is_noop = self._stats.success_is_noop
        fast.noop_permit = fast.permit if fast.success_is_noop else None

    def _open_rejection(self, now: float) -> GuardRejection:
        machine = self.machine
        return self._reject(machine.state, machine.rejection_cause, machine.retry_after_s(now))

    def _reject(
        self, state: BreakerState, cause: BreakerCause, after_s: float = 0.0, *, lease_wanted: bool = False
    ) -> GuardRejection:
        last_failure = self._stats.last_failure
        return GuardRejection(self.machine.name, state, cause, after_s, last_failure, lease_wanted)
