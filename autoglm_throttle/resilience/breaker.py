"""The circuit breaker as a machine without clock, lock or device: every method is told the time.

States and moves stand in `transitions`, what opens a closed breaker in `evidence`, trials in `trials`, gradual closing
in `ramp`. Each change of state begins a new generation, and a result of an earlier one counts no more: a late answer
cannot close, open or prolong anything. A trial has a lease, so one that hangs costs a wait and never the breaker.

A clock that steps back reads as standing still.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.model import BreakerView, Cause, Mode, Outcome, Pass, Refusal, SlowIs, State, Transition
from autoglm_throttle.resilience.evidence import Evidence
from autoglm_throttle.resilience.places import Places
from autoglm_throttle.resilience.ramp import Ramp
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Lease, Remote
from autoglm_throttle.resilience.transitions import MOVES, OPENED_AGAIN, Event
from autoglm_throttle.resilience.trials import Trials

LONGEST_RETRY_AFTER_S: Final = 300.0
"""Seconds that a dependency can ask for where ``open_max_s`` is not set: a typing error of theirs is no outage of ours."""

LEASE_ASK_S: Final = 0.05
"""Seconds between two callers who ask the fleet for a lease: the default deadline of the store."""

UNRECORDED: Final = Pass(generation=-1)
"""The pass of a call that would have been refused: its result counts nowhere."""

_REMOTE: Final = {
    State.CLOSED: Event.REMOTE_CLOSED,
    State.OPEN: Event.REMOTE_OPEN,
    State.HALF_OPEN: Event.REMOTE_HALF_OPEN,
    State.FORCED_OPEN: Event.REMOTE_FORCE,
    State.DISABLED: Event.REMOTE_DISABLE,
}

_MEANWHILE: Final = (State.CLOSED, State.RAMPING, State.FORCED_OPEN, State.DISABLED)
"""States in which a lease that arrives is no longer needed, or of no use."""


class Breaker:
    """One breaker; whoever holds it calls one method at a time.

    Args:
        name: of the guard.
        rules: complete and checked.
        now: monotonic seconds.
        lease_ask_s: at most one caller per so many seconds is told to ask for the fleet's lease.
    """

    __slots__ = (
        "_asked_s",
        "_bounded",
        "_cause",
        "_evidence",
        "_in_flight",
        "_known",
        "_lease_ask_s",
        "_now",
        "_opened_s",
        "_outbox",
        "_ramp",
        "_refused",
        "_rounds",
        "_serial",
        "_shared",
        "_state",
        "_trials",
        "_wait_s",
        "_watching",
        "_why",
        "calls",
        "classifier_errors",
        "clean",
        "fast",
        "generation",
        "last_failure",
        "leased",
        "name",
        "rules",
        "stale_results",
        "would_refuse",
    )

    def __init__(self, name: str, rules: Rules, now: float, lease_ask_s: float = LEASE_ASK_S) -> None:
        self.name = name
        self.rules = rules
        self.generation: int = 0
        """Rises with each change of state; passes carry it."""
        self.leased: bool = False
        """Whether a trial needs the fleet's lease; set by the owner."""
        self.calls: int = 0
        """Let through; the fast path of the faces counts here too."""
        self.stale_results: int = 0
        """Results of an earlier generation, and second results of one call."""
        self.classifier_errors: int = 0
        """Counted by the owner."""
        self.would_refuse: int = 0
        """Calls let through that an enforcing breaker would have refused."""
        self.last_failure: str = ""
        """Type and text of the newest failure."""
        self._trials = Trials(rules)
        self._evidence = Evidence(rules)
        self._ramp = Ramp(rules.ramp, rules.ramp_step_s)
        self._in_flight = Places(rules.lease_s)
        self._bounded = rules.max_in_flight > 0
        self._state = State.DISABLED if rules.mode is Mode.DISABLED else State.CLOSED
        self._watching = rules.mode is Mode.METRICS_ONLY
        self._cause: Cause | None = None
        self._why = ""
        self._opened_s: float | None = None
        self._wait_s = 0.0
        self._rounds = 0
        self._serial = 0
        self._known = -1
        self._lease_ask_s = lease_ask_s
        self._asked_s = -math.inf
        self._refused: dict[Cause, int] = {}
        self._outbox: list[Transition] = []
        self._now = now
        self._begin()

    # What callers ask

    def allow(self, now: float) -> Pass | Refusal:
        """Ask leave for one call; whoever gets a Pass records the outcome exactly once."""
        self._now = now
        fast = self.fast
        if fast is not None:
            self.calls += 1
            return fast
        if self._bounded:
            self._in_flight.expire(now)
        answer = self._answer(now)
        if isinstance(answer, Pass):
            self.calls += self._state is not State.DISABLED
            return answer
        if self._watching:
            self.would_refuse += 1
            self.calls += 1
            return UNRECORDED
        self._refused[answer.cause] = self._refused.get(answer.cause, 0) + 1
        return answer

    def refuses(self, now: float) -> Refusal | None:
        """What `allow` would answer now, if that is a refusal; free of effects."""
        if self._watching:
            return None
        state = self.state(now)
        if state is State.CLOSED or state is State.RAMPING:
            if self._full(now):
                return self._refusal(Cause.IN_FLIGHT, 0.0)
            if state is State.RAMPING and not self._ramp.admits(now):
                return self._refusal(Cause.RAMP, 0.0)
            return None
        if state is State.HALF_OPEN:
            return self._trial_refused(now)
        return None if state is State.DISABLED else self._kept_out(now)

    def record(self, pass_: Pass, outcome: Outcome, now: float) -> None:
        """Say how a call ended.

        A pass that does not count any more, because the state has changed, its place was taken away or its result
        has come before, changes nothing but ``stale_results``.
        """
        self._now = now
        counted = self._in_flight.leave(pass_.serial) if self._bounded else pass_.serial == 0
        if pass_.generation != self.generation:
            self.stale_results += pass_ is not UNRECORDED
            return
        state = self._state
        if state is State.HALF_OPEN:
            counted = self._trials.leave(pass_.serial)
        elif state is State.FORCED_OPEN or state is State.DISABLED:
            return
        if not counted or state is State.OPEN:
            self.stale_results += 1
        elif outcome is Outcome.NEUTRAL:
            return
        elif state is State.HALF_OPEN:
            self._end_trial(outcome, now)
        else:
            self._weigh(outcome, now)

    def fail_note(self, text: str) -> None:
        """Keep what the newest failure was; told before its result is recorded."""
        self.last_failure = text

    def state(self, now: float) -> State:
        """What a caller would meet; free of effects. An open breaker whose time is over reads half-open."""
        if self._state is State.OPEN and self._left(now) <= 0.0:
            return State.HALF_OPEN
        return self._state

    def view(self, now: float) -> BreakerView:
        """Everything there is to see; free of effects."""
        counts = self._evidence.counts(now)
        return BreakerView(
            name=self.name,
            state=self.state(now),
            machine=self._state,
            metrics_only=self._watching,
            cause=self._cause,
            generation=self.generation,
            streak=self._evidence.streak,
            window_calls=counts.calls,
            window_failures=counts.failures,
            window_slow=counts.slow,
            trials=len(self._trials),
            won=self._trials.won,
            rounds=self._rounds,
            opened_s=self._opened_s,
            retry_after_s=self._retry_after(now),
            in_flight=len(self._in_flight) if self._bounded else len(self._trials),
            calls=self.calls,
            refused=dict(self._refused),
            would_refuse=self.would_refuse,
            stale_results=self.stale_results,
            classifier_errors=self.classifier_errors,
            last_failure=self.last_failure,
            shared=self.leased,
        )

    def __repr__(self) -> str:
        return f"<Breaker {self.name!r} {', '.join(self._words())}>"

    def drain(self) -> list[Transition]:
        """Take the changes that nobody has been told of yet, the oldest first."""
        outbox, self._outbox = self._outbox, []
        return outbox

    # What others decide

    def open_for(self, duration_s: float, cause: Cause, now: float) -> None:
        """Open because the dependency says when to come back.

        A breaker that is open already stays so until the later of the two moments.

        Args:
            duration_s: seconds from now; at most ``open_max_s``, else `LONGEST_RETRY_AFTER_S`.
            cause: said in place of the table's.
            now: monotonic seconds.
        """
        longest = self.rules.open_max_s
        wait_s = max(0.0, min(duration_s, LONGEST_RETRY_AFTER_S if longest is None else longest))
        if self._state is not State.OPEN or wait_s > self._left(now):
            self._go(Event.RETRY_AFTER, now, wait_s=wait_s, cause=cause)

    def force_open(self, now: float) -> None:
        """Let nothing through until an operator says otherwise."""
        self._operate(Event.FORCE, now)

    def disable(self, now: float) -> None:
        """Let everything through and count nothing until an operator says otherwise."""
        self._operate(Event.DISABLE, now)

    def metrics_only(self, now: float) -> None:
        """Let everything through, and only count what would be refused, until an operator says otherwise."""
        self._operate(Event.WATCH, now)

    def reset(self, now: float) -> None:
        """Close, enforce, and forget all that was."""
        self._operate(Event.RESET, now)

    def grant(self, lease: Lease, now: float) -> Pass | Refusal:
        """Begin a trial that the fleet has given leave for.

        Returns:
            The pass of the trial, ``fence`` > 0. Where the machine has moved on since the lease was asked for, what
            `allow` says to any call: an ordinary pass without fence if it has closed, else a refusal. The lease is
            then to be given back.
        """
        self._now = now
        newer = lease.version > self._known
        if self._state in _MEANWHILE or (self.state(now) is State.OPEN and not newer):
            return self.allow(now)
        if self._state is State.OPEN:
            self._go(Event.GRANTED if newer else Event.WAITED, now)
        if newer:
            self._known = lease.version
            self._rounds = lease.rounds
        self._trials.expire(now)
        self.calls += 1
        return self._begin_trial(now, lease.fence)

    def adopt(self, remote: Remote, now: float) -> None:
        """Take over a newer state of the fleet; one that is not newer changes nothing.

        A process that has closed already, by itself or by a ramp of its own, goes on with what it has counted.
        An operator's state is left only for what an operator has said elsewhere.
        """
        self._now = now
        if remote.version <= self._known:
            return
        event = _REMOTE[remote.state]
        if event is Event.REMOTE_CLOSED:
            if remote.cause is Cause.OPERATOR:
                event = Event.REMOTE_RESET
            elif self.rules.ramp:
                event = Event.REMOTE_CLOSED_RAMP
        cause = self._cause if self._state is State.OPEN and event is Event.REMOTE_OPEN else None
        if event in (Event.REMOTE_FORCE, Event.REMOTE_DISABLE, Event.REMOTE_RESET):
            self._watching = False
        if self._state in (State.FORCED_OPEN, State.DISABLED) and (self._state, event) not in MOVES:
            return
        self._known = remote.version
        self._go(event, now, wait_s=remote.wait_s, cause=cause)
        self._rounds = remote.rounds

    def forget(self, now: float) -> None:
        """Drop all calls under way, because this process has been forked and they are the parent's."""
        self._now = now
        self.generation += 1
        won = self._trials.won
        self._trials.clear()
        self._trials.won = won
        self._in_flight.clear()
        self._share()

    # The machine

    def _answer(self, now: float) -> Pass | Refusal:
        state = self._state
        if state is State.OPEN:
            if self._left(now) > 0.0:
                return self._kept_out(now)
            self._go(Event.WAITED, now)
            return self._try(now)
        if state is State.HALF_OPEN:
            return self._try(now)
        if state is State.FORCED_OPEN:
            return self._kept_out(now)
        if state is State.DISABLED:
            return self._shared
        if self._full(now):
            return self._refusal(Cause.IN_FLIGHT, 0.0)
        if state is State.RAMPING:
            if self._ramp.ends(now):
                self._go(Event.RAMP_DONE, now)
            elif not self._ramp.ask(now):
                return self._refusal(Cause.RAMP, 0.0)
        return self._counted(now) if self._bounded else self._shared

    def _try(self, now: float) -> Pass | Refusal:
        self._trials.expire(now)
        refusal = self._trial_refused(now)
        if refusal is None:
            return self._begin_trial(now)
        if refusal.lease_wanted:
            self._asked_s = now
        return refusal

    def _trial_refused(self, now: float) -> Refusal | None:
        if self._trials.full(now):
            return self._refusal(Cause.TRIAL, 0.0, State.HALF_OPEN)
        if self.leased and not self._watching:
            wanted = not 0.0 <= now - self._asked_s < self._lease_ask_s
            return Refusal(self.name, State.HALF_OPEN, Cause.TRIAL, 0.0, self.last_failure, wanted)
        return None

    def _begin_trial(self, now: float, fence: int = 0) -> Pass:
        pass_ = self._counted(now, fence)
        self._trials.take(pass_.serial, now)
        return pass_

    def _counted(self, now: float, fence: int = 0) -> Pass:
        self._serial += 1
        if self._bounded:
            self._in_flight.take(self._serial, now)
        return Pass(self.generation, self._serial, fence)

    def _end_trial(self, outcome: Outcome, now: float) -> None:
        if outcome is not Outcome.SUCCESS:
            self._why = f"trial {outcome}"
            self._go(Event.TRIAL_FAILED, now)
        elif self._trials.win():
            self._go(Event.TRIALS_WON_RAMP if self.rules.ramp else Event.TRIALS_WON, now)

    def _weigh(self, outcome: Outcome, now: float) -> None:
        slow = outcome is Outcome.SLOW
        failed = outcome is Outcome.FAILURE or (slow and self.rules.slow_is is SlowIs.FAILURE)
        if outcome is Outcome.SUCCESS:
            self._ramp.succeeded()
        event = self._evidence.note(failed=failed, slow=slow, now=now)
        if event is None:
            self.clean = self._evidence.settled
        else:
            self._why = self._evidence.why
            self._go(event, now)

    def _operate(self, event: Event, now: float) -> None:
        self._now = now
        self._watching = event is Event.WATCH
        self._go(event, now)
        if event is Event.RESET:
            self._rounds = 0

    def _go(self, event: Event, now: float, *, wait_s: float | None = None, cause: Cause | None = None) -> None:
        move = MOVES.get((self._state, event))
        if move is None:
            return
        before, self._state = self._state, move.to
        self._cause = cause or move.cause
        self.generation += 1
        if move.to is State.OPEN:
            if before is not State.OPEN:
                self._rounds = self._rounds + 1 if before in OPENED_AGAIN else 0
            self._opened_s = now
            self._wait_s = self.rules.wait_s(self._rounds) if wait_s is None else wait_s
        elif move.to is State.CLOSED:
            self._opened_s = None
        self._begin(now)
        if move.to is not before:
            self._announce(before, now)

    def _begin(self, now: float = 0.0) -> None:
        self._evidence.clear()
        self._trials.clear()
        self._ramp.start(now)
        self._share()
        self.clean = self._evidence.settled

    def _share(self) -> None:
        self._shared = Pass(self.generation)
        usual = self._state is State.CLOSED and not self._watching and not self._bounded
        self.fast: Pass | None = self._shared if usual else None

    def _announce(self, before: State, now: float) -> None:
        wait_s = self._wait_s if self._state is State.OPEN else 0.0
        cause = self._cause or Cause.OPERATOR
        self._outbox.append(
            Transition(self.name, before, self._state, cause, now, self.generation, wait_s, self._rounds)
        )

    # What is left, and how it is said

    def _left(self, now: float) -> float:
        opened_s = self._opened_s
        return self._wait_s if opened_s is None or now < opened_s else self._wait_s - (now - opened_s)

    def _full(self, now: float) -> bool:
        return self._bounded and self._in_flight.held(now) >= self.rules.max_in_flight

    def _retry_after(self, now: float) -> float:
        if self._state is State.FORCED_OPEN:
            return self.rules.open_s
        return max(0.0, self._left(now)) if self._state is State.OPEN else 0.0

    def _kept_out(self, now: float) -> Refusal:
        cause = Cause.OPERATOR if self._state is State.FORCED_OPEN else self._cause
        return self._refusal(cause or Cause.OPERATOR, self._retry_after(now))

    def _refusal(self, cause: Cause, retry_after_s: float, state: State | None = None) -> Refusal:
        return Refusal(self.name, state or self._state, cause, retry_after_s, self.last_failure)

    def _words(self) -> list[str]:
        return [str(self._state), f"gen {self.generation}"]
