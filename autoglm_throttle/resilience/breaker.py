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

from autoglm_throttle.model import BreakerView, Cause, Mode, Outcome, Pass, Refusal, SlowIs, State, Transition
from autoglm_throttle.resilience.evidence import Evidence
from autoglm_throttle.resilience.machine import Machine
from autoglm_throttle.resilience.ramp import Ramp
from autoglm_throttle.resilience.refusals import refusal
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.said import said
from autoglm_throttle.resilience.store import Lease, Remote
from autoglm_throttle.resilience.transitions import OPERATED, Event
from autoglm_throttle.resilience.trials import Trials

LONGEST_RETRY_AFTER_S: Final = 300.0
"""Longest accepted Retry-After in seconds if ``open_max_s`` is None: protects against a wrong value."""

LEASE_ASK_S: Final = 0.05
"""Seconds between two calls that request the fleet's lease: the default deadline of the store."""

LAST_FAILURE_AT_MOST: Final = 200
"""Characters kept of a failure's text: enough to identify it, too few for a response body."""

UNRECORDED: Final = Pass(generation=-1)
"""Permit of a call that an enforcing breaker would have rejected: its result is not counted."""

# Read on every call: a module-level name costs a fraction of an enum member look-up.
_CLOSED: Final = State.CLOSED
_OPEN: Final = State.OPEN
_HALF_OPEN: Final = State.HALF_OPEN
_RAMPING: Final = State.RAMPING


class Breaker:
    """One circuit breaker. Its owner must serialize all calls of its methods.

    Args:
        name: of the guard.
        rules: complete and validated.
        now: monotonic seconds.
        lease_request_interval_s: seconds between two calls that may request the fleet's lease, > 0.
    """

    __slots__ = (
        *("_asked_s", "_bounded", "_decided_here", "_evidence", "_figures", "_in_flight", "_known"),
        *("_lease_ask_s", "_machine", "_now", "_ramp", "_refused", "_serial", "_shared", "_trials"),
        *("_watching", "calls", "classifier_errors", "clean", "fast", "last_failure", "leased", "name"),
        *("rules", "stale_results", "would_refuse"),
    )

    def __init__(self, name: str, rules: Rules, now: float, lease_ask_s: float = LEASE_ASK_S) -> None:
        self.name: str = name
        self.rules: Rules = rules
        self.leased: bool = False
        """Whether a probe needs the fleet's lease; set by the owner."""
        self.fast: Pass | None
        """The shared permit if no check is needed (closed, enforcing, ``max_in_flight`` unset), else None."""
        self.clean: bool
        """Whether recording a success for `fast_permit` would change nothing."""
        self.calls: int = 0
        """Admitted calls. A caller that uses `fast_permit` directly increments it."""
        self.stale_results: int = 0
        """Results of an earlier generation, and second results of one call."""
        self.classifier_errors: int = 0
        """Counted by the owner."""
        self.would_refuse: int = 0
        """Admitted calls that an enforcing breaker would have rejected."""
        self.last_failure: str = ""
        """Type and text of the newest failure."""
        start = State.DISABLED if rules.mode is Mode.DISABLED else State.CLOSED
        self._machine = Machine(name, rules, start)
        self._trials = Trials(rules)
        self._evidence = Evidence(rules)
        self._ramp = Ramp(rules.ramp, rules.ramp_step_s)
        self._in_flight: set[int] = set()
        self._bounded = rules.max_in_flight > 0
        self._watching = rules.mode is Mode.METRICS_ONLY
        self._serial = 0
        self._known = -1
        self._decided_here = False
        self._lease_ask_s = lease_ask_s
        self._asked_s = -math.inf
        self._refused = dict.fromkeys(Cause, 0)
        self._now = now
        self._begin()

    @property
    def generation(self) -> int:
        """Generation number: rises by one with each change of state. Each permit carries its own."""
        return self._machine.generation

    def __repr__(self) -> str:
        return f"<Breaker {said(self.view(self._now), self.rules, self._figures)}>"

    def allow(self, now: float) -> Pass | Refusal:
        """Request one call. The caller records the outcome of a returned permit exactly once."""
        self._now = now
        fast = self.fast
        if fast is not None:
            self.calls += 1
            return fast
        answer = self._answer(now)
        if isinstance(answer, Pass):
            self.calls += self._machine.state is not State.DISABLED
            return answer
        if self._watching:
            self.would_refuse += 1
            self.calls += 1
            return UNRECORDED
        self._refused[answer.cause] += 1
        return answer

    def refuses(self, now: float) -> Refusal | None:
        """Return the rejection that `allow` would return, or None. Has no effects."""
        state = self.state(now)
        if self._watching or state is State.DISABLED:
            return None
        if state is _HALF_OPEN:
            return self._trial_refused(now)
        if state is _CLOSED or state is _RAMPING:
            if self._bounded and len(self._in_flight) >= self.rules.max_in_flight:
                return refusal(self.name, state, Cause.IN_FLIGHT, 0.0, self.last_failure)
            if state is _CLOSED or self._ramp.admits(now):
                return None
            return refusal(self.name, state, Cause.RAMP, 0.0, self.last_failure)
        return self._kept_out(now)

    def record(self, pass_: Pass, outcome: Outcome, now: float) -> None:
        """Record the outcome of a call.

        A permit is stale if the state has changed, its probe lease has expired, or its outcome was recorded
        before. A stale permit only increments ``stale_results``.
        """
        self._now = now
        machine = self._machine
        state = machine.state
        if pass_.generation != machine.generation:
            # Negative generations mark permits that are never counted (`UNRECORDED_PERMIT`), so they are not
            # stale.
            self.stale_results += pass_.generation >= 0
        elif state is _HALF_OPEN:
            if self._trials.leave(pass_.serial):
                self._end_trial(outcome, now)
            else:
                self.stale_results += 1
        elif state is _CLOSED or state is _RAMPING:
            if not self._bounded and not pass_.serial:
                self._weigh(outcome, now)
            elif pass_.serial in self._in_flight:
                self._in_flight.remove(pass_.serial)
                self._weigh(outcome, now)
            else:
                self.stale_results += 1
        elif state is _OPEN:
            self.stale_results += 1

    def fail_note(self, text: str) -> None:
        """Store the text of the newest failure; called before its outcome is recorded.

        Args:
            text: type and message; truncated to `LAST_FAILURE_MAX_CHARS` characters.
        """
        self.last_failure = text[:LAST_FAILURE_AT_MOST]

    def state(self, now: float) -> State:
        """Return the state visible to callers: an open breaker reads half-open after its open period."""
        return self._machine.seen(now)

    def view(self, now: float) -> BreakerView:
        """Return an immutable view of all figures. Has no effects."""
        machine = self._machine
        counts = self._evidence.counts(now)
        trials = len(self._trials)
        return BreakerView(
            name=self.name,
            state=machine.seen(now),
            machine=machine.state,
            metrics_only=self._watching,
            cause=machine.cause,
            generation=machine.generation,
            streak=self._evidence.streak,
            window_calls=counts.calls,
            window_failures=counts.failures,
            window_slow=counts.slow,
            trials=trials,
            won=self._trials.won,
            rounds=machine.rounds,
            opened_s=machine.opened_s,
            retry_after_s=machine.retry_after_s(now),
            in_flight=trials + len(self._in_flight),
            calls=self.calls,
            refused={cause: count for cause, count in self._refused.items() if count},
            would_refuse=self.would_refuse,
            stale_results=self.stale_results,
            classifier_errors=self.classifier_errors,
            last_failure=self.last_failure,
            shared=self.leased,
        )

    def drain(self) -> list[Transition]:
        """Take the transitions that were not yet published, oldest first."""
        return self._machine.drain()

    def open_for(self, duration_s: float, cause: Cause, now: float) -> None:
        """Open for the period that the dependency requests; the following round waits as usual.

        An open breaker stays open until the later of the two ends. An operator's decision takes precedence.

        Args:
            duration_s: seconds from now; capped at ``open_max_s`` or `MAX_RETRY_AFTER_S`.
            cause: of the transition.
            now: monotonic seconds.
        """
        self._now = now
        longest_s = self.rules.open_max_s or LONGEST_RETRY_AFTER_S
        wait_s = max(0.0, min(duration_s, longest_s))
        if self._machine.state is not _OPEN or wait_s > self._machine.left_s(now):
            self._go(Event.RETRY_AFTER, now, wait_s=wait_s, cause=cause)

    def force_open(self, now: float) -> None:
        """Reject all calls until the next operator command."""
        self._decide(Event.FORCE, now)

    def disable(self, now: float) -> None:
        """Admit all calls and count nothing until the next operator command."""
        self._decide(Event.DISABLE, now)

    def metrics_only(self, now: float) -> None:
        """Reset, admit all calls and only count the calls that would be rejected.

        Lasts until the next operator command in this process, or until an operator opens or disables the
        breakers of the fleet.
        """
        self._decide(Event.WATCH, now)

    def reset(self, now: float) -> None:
        """Reset to closed and enforcing."""
        self._decide(Event.RESET, now)

    def grant(self, lease: Lease, now: float) -> Pass | Refusal:
        """Start a probe with the lease that the fleet has granted.

        Returns:
            The permit of the probe, with ``fence`` above 0. If the state has changed since the lease was
            requested: the answer of `allow`, which is an ordinary permit with ``fence`` 0, or a rejection.
            The lease is unused then and must be returned.
        """
        if self.state(now) is not _HALF_OPEN:
            return self.allow(now)
        if self._machine.state is _OPEN:
            self._go(Event.WAITED, now, rounds=lease.rounds)
        self._known = max(self._known, lease.version)
        self._trials.expire(now)
        self.calls += 1
        return self._begin_trial(now, lease.fence)

    def adopt(self, remote: Remote, now: float) -> None:
        """Apply a newer state of the fleet.

        A closed or ramping process ignores that the fleet has closed. A process that is already in the remote
        state keeps its own cause. An operator's decision in this process holds until the fleet reports an
        operator command, the same or another.

        Args:
            remote: ignored unless its ``version`` is above all applied before.
            now: monotonic seconds.
        """
        self._now = now
        machine = self._machine
        by_operator = remote.cause is Cause.OPERATOR or remote.state in OPERATED
        if remote.version <= self._known or (self._decided_here and not by_operator):
            return
        self._known = remote.version
        self._decided_here = False
        if remote.state in OPERATED:
            self._watching = False
        # Already in the remote state: the local cause is the more precise one.
        cause = machine.cause if machine.state is remote.state else None
        self._go(machine.heard(remote), now, wait_s=remote.wait_s, cause=cause, rounds=remote.rounds)

    def reset_after_fork(self, now: float) -> None:
        """Drop all calls in flight in a forked child: they belong to the parent process."""
        self._now = now
        # A new generation makes the late results of the parent's calls stale in this process.
        self._machine.generation += 1
        won = self._trials.won
        self._trials.clear()
        self._trials.won = won
        self._in_flight.clear()
        self._share()

    def _answer(self, now: float) -> Pass | Refusal:
        machine = self._machine
        state = machine.state
        if state is _OPEN:
            left_s = machine.left_s(now)
            if left_s > 0.0:
                return refusal(self.name, _OPEN, machine.shut_by, left_s, self.last_failure)
            self._go(Event.WAITED, now)
            return self._try(now)
        if state is _HALF_OPEN:
            return self._try(now)
        if state is _CLOSED or state is _RAMPING:
            return self._let_in(now)
        return self._shared if state is State.DISABLED else self._kept_out(now)

    def _let_in(self, now: float) -> Pass | Refusal:
        if self._bounded and len(self._in_flight) >= self.rules.max_in_flight:
            return refusal(self.name, self._machine.state, Cause.IN_FLIGHT, 0.0, self.last_failure)
        if self._machine.state is _RAMPING:
            if self._ramp.ends(now):
                self._go(Event.RAMP_DONE, now)
            elif not self._ramp.ask(now):
                return refusal(self.name, _RAMPING, Cause.RAMP, 0.0, self.last_failure)
        if not self._bounded:
            return self._shared
        self._serial += 1
        self._in_flight.add(self._serial)
        return Pass(self._machine.generation, self._serial)

    def _try(self, now: float) -> Pass | Refusal:
        self._trials.expire(now)
        refused = self._trial_refused(now)
        if refused is None:
            return self._begin_trial(now)
        if refused.lease_wanted:
            self._asked_s = now
        return refused

    def _trial_refused(self, now: float) -> Refusal | None:
        leased = self.leased and not self._watching
        if self._trials.full(now, leased):
            return refusal(self.name, _HALF_OPEN, Cause.TRIAL, 0.0, self.last_failure)
        if not leased:
            return None
        # The lower bound treats a clock that stepped back as expired, so the lease is requested again.
        wanted = not 0.0 <= now - self._asked_s < self._lease_ask_s
        return refusal(self.name, _HALF_OPEN, Cause.TRIAL, 0.0, self.last_failure, wanted)

    def _begin_trial(self, now: float, fence: int = 0) -> Pass:
        self._serial += 1
        self._trials.take(self._serial, now)
        return Pass(self._machine.generation, self._serial, fence)

    def _end_trial(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.FAILURE or outcome is Outcome.SLOW:
            self._go(Event.TRIAL_FAILED, now)
        elif outcome is Outcome.SUCCESS and self._trials.win():
            self._go(Event.TRIALS_WON_RAMP if self.rules.ramp else Event.TRIALS_WON, now)

    def _weigh(self, outcome: Outcome, now: float) -> None:
        if outcome is Outcome.NEUTRAL:
            return
        slow = outcome is Outcome.SLOW
        if outcome is Outcome.SUCCESS:
            self._ramp.succeeded()
        failed = outcome is Outcome.FAILURE or (slow and self.rules.slow_is is SlowIs.FAILURE)
        event = self._evidence.note(failed, slow, now)
        if event is None:
            self.clean = self._evidence.settled
        else:
            self._go(event, now)
            self._figures = self._evidence.figures

    def _decide(self, event: Event, now: float) -> None:
        self._watching = event is Event.WATCH
        self._go(event, now, rounds=0)
        self._decided_here = self._machine.state in OPERATED

    def _go(
        self,
        event: Event,
        now: float,
        *,
        wait_s: float | None = None,
        cause: Cause | None = None,
        rounds: int | None = None,
    ) -> None:
        if self._machine.go(event, now, wait_s=wait_s, cause=cause, rounds=rounds):
            self._ramp.start(now)
            self._begin()

    def _begin(self) -> None:
        self._figures = ""
        self._evidence.clear()
        self._trials.clear()
        self._in_flight.clear()
        self.clean = self._evidence.settled
        self._share()

    def _share(self) -> None:
        self._shared = Pass(self._machine.generation)
        usual = self._machine.state is _CLOSED and not self._watching and not self._bounded
        self.fast = self._shared if usual else None

    def _kept_out(self, now: float) -> Refusal:
        machine = self._machine
        after_s = machine.retry_after_s(now)
        return refusal(self.name, machine.state, machine.shut_by, after_s, self.last_failure)
