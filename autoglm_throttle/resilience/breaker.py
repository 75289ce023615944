"""The circuit breaker as a machine without clock, lock or device: every method is told the time.

The moves stand in `transitions`; what opens a closed breaker in `evidence`; who may call meanwhile in
`trials` and `ramp`. Each change of state begins a new generation, and a result of an earlier one counts no
more: no late answer closes, opens or prolongs anything. A trial has a lease, so one that hangs costs a wait
and never the breaker. Any other call has none: with ``max_in_flight`` it keeps its place until its result is
told, however late, and that counts. A clock that steps back reads as standing still.
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
"""Seconds that a dependency can ask for where ``open_max_s`` says nothing: its slip is no outage of ours."""

LEASE_ASK_S: Final = 0.05
"""Seconds between two callers that ask for the fleet's lease: the deadline of the store, by default."""

LAST_FAILURE_AT_MOST: Final = 200
"""Characters kept of a failure's text: enough to know it again, and no body of an answer."""

UNRECORDED: Final = Pass(generation=-1)
"""The pass of a call that an enforcing breaker would have refused: its result counts nowhere."""

# In front of every call: as names of the module they cost a fraction of what they cost as members.
_CLOSED: Final = State.CLOSED
_OPEN: Final = State.OPEN
_HALF_OPEN: Final = State.HALF_OPEN
_RAMPING: Final = State.RAMPING


class Breaker:
    """One breaker. Its owner sees to it that one method runs at a time.

    Args:
        name: of the guard.
        rules: complete and checked.
        now: monotonic seconds.
        lease_ask_s: seconds between two callers that are told to ask for the fleet's lease, > 0.
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
        """Whether a trial needs the fleet's lease; set by the owner."""
        self.fast: Pass | None
        """The pass of all calls while there is nothing to ask: closed, enforcing, no bound in flight."""
        self.clean: bool
        """Whether recording a success for `fast` would change nothing."""
        self.calls: int = 0
        """Let through; who takes `fast` without asking counts here."""
        self.stale_results: int = 0
        """Results of an earlier generation, and second results of one call."""
        self.classifier_errors: int = 0
        """Counted by the owner."""
        self.would_refuse: int = 0
        """Calls let through that an enforcing breaker would have refused."""
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
        """Rises by one with each change of state; a pass carries the one that it was given in."""
        return self._machine.generation

    def __repr__(self) -> str:
        return f"<Breaker {said(self.view(self._now), self.rules, self._figures)}>"

    def allow(self, now: float) -> Pass | Refusal:
        """Ask for one call; who gets a pass records the outcome, exactly once."""
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
        """What `allow` would answer, if that is a refusal; free of effects."""
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
        """Say how a call has ended.

        A pass that counts no more, because the state has changed, a trial's place was given away or the
        result was told before, changes nothing but ``stale_results``.
        """
        self._now = now
        machine = self._machine
        state = machine.state
        if pass_.generation != machine.generation:
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
        """Keep what the newest failure was; told before its result is recorded.

        Args:
            text: its type and what it says; `LAST_FAILURE_AT_MOST` characters are kept.
        """
        self.last_failure = text[:LAST_FAILURE_AT_MOST]

    def state(self, now: float) -> State:
        """What a caller would meet; free of effects. An open breaker whose time is over reads half-open."""
        return self._machine.seen(now)

    def view(self, now: float) -> BreakerView:
        """All there is to see; free of effects."""
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
        """Take the changes of state that nobody has been told of, the oldest first."""
        return self._machine.drain()

    def open_for(self, duration_s: float, cause: Cause, now: float) -> None:
        """Open because the dependency says when to come back; the round that follows waits as usual.

        A breaker that is open already stays so until the later of the two moments, and an operator's decision
        stands.

        Args:
            duration_s: seconds from now; no more than ``open_max_s``, or `LONGEST_RETRY_AFTER_S`.
            cause: why.
            now: monotonic seconds.
        """
        self._now = now
        longest_s = self.rules.open_max_s or LONGEST_RETRY_AFTER_S
        wait_s = max(0.0, min(duration_s, longest_s))
        if self._machine.state is not _OPEN or wait_s > self._machine.left_s(now):
            self._go(Event.RETRY_AFTER, now, wait_s=wait_s, cause=cause)

    def force_open(self, now: float) -> None:
        """Let nothing through until an operator says otherwise."""
        self._decide(Event.FORCE, now)

    def disable(self, now: float) -> None:
        """Let everything through and count nothing until an operator says otherwise."""
        self._decide(Event.DISABLE, now)

    def metrics_only(self, now: float) -> None:
        """Begin anew, let everything through and only count what would be refused.

        It stays so until an operator says otherwise here, or opens or turns off the breakers of the fleet.
        """
        self._decide(Event.WATCH, now)

    def reset(self, now: float) -> None:
        """Begin anew, closed and enforcing."""
        self._decide(Event.RESET, now)

    def grant(self, lease: Lease, now: float) -> Pass | Refusal:
        """Begin a trial for which the fleet has given its lease.

        Returns:
            The pass of the trial, with ``fence`` above 0. Where the machine has moved on since the lease was
            asked for, what `allow` answers to any call: an ordinary pass, with ``fence`` 0, or a refusal. The
            lease is then of no use, and to be given back.
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
        """Go where the fleet has gone, if that is news.

        Closed or ramping, a process goes on as it is when it hears that the fleet has closed; and where it is
        already, it stays for its own cause. What an operator has decided in this process stands until the
        fleet tells an operator's word: this one, or another.

        Args:
            remote: of a ``version`` above all that were adopted before, or it changes nothing.
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
        cause = machine.cause if machine.state is remote.state else None
        self._go(machine.heard(remote), now, wait_s=remote.wait_s, cause=cause, rounds=remote.rounds)

    def forget(self, now: float) -> None:
        """Let go of all calls under way: this process was forked, and they are its parent's."""
        self._now = now
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
