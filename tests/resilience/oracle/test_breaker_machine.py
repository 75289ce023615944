"""The breaker beside its oracle: whatever comes in whatever order, both answer the same and look the same.

A second breaker lives through the same, at times that are a constant greater, and is never looked at.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from autoglm_throttle.model import Cause, Mode, Outcome, State
from autoglm_throttle.model.guard import Pass, Refusal
from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.rules import Rules
from autoglm_throttle.resilience.store import Lease, Remote
from tests.resilience.oracle import drawn, recount
from tests.resilience.oracle.beside import APART_S, Beside, bare
from tests.resilience.oracle.oracle import OPERATED

ASK = (Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL)
FLEET = (
    (State.CLOSED, Cause.TRIAL),
    (State.CLOSED, Cause.OPERATOR),
    (State.OPEN, Cause.FAILURES),
    (State.OPEN, Cause.TRIAL),
    (State.HALF_OPEN, Cause.FAILURES),
    (State.FORCED_OPEN, Cause.OPERATOR),
    (State.DISABLED, Cause.OPERATOR),
)

outcomes = st.sampled_from(ASK)


class Guest(Enum):
    """Who comes in between: a run without them gets further."""

    FLEET = auto()
    OPERATOR = auto()
    CLOCK = auto()
    """It steps back."""


def with_a(guest: Guest) -> Callable[[Any], bool]:
    return lambda self: guest in self.guests


class BreakerMachine(Beside, RuleBasedStateMachine):
    """Two breakers and an oracle, and all passes that were ever given."""

    passes = Bundle("passes")

    @initialize(rules=drawn.rules(), guests=st.sets(st.sampled_from(Guest)))
    def begin(self, rules: Rules, guests: set[Guest]) -> None:
        self.be_born(rules)
        self.guests = guests

    # --- calls ---

    @rule(target=passes, fast=st.booleans())
    def ask(self, fast: bool) -> Any:
        got = self.ask_once(fast=fast)
        return multiple() if got is None else got

    @rule(target=passes, outcome=outcomes, times=st.integers(1, 4))
    def call(self, outcome: Outcome, times: int) -> Any:
        for _ in range(times):
            got = self.ask_once()
            if got is None:
                return multiple()
            self.record(got, outcome)
        return got

    @rule(several=st.lists(outcomes, min_size=2, max_size=6), apart=st.integers(0, 3))
    def results_come(self, several: list[Outcome], apart: int) -> None:
        """Calls one after another, at distances that the windows of time are made of."""
        apart_s = (0.0, drawn.TICK_S, (self.by.window_s or 0.0) / 10, self.by.failure_window_s or 0.5)
        for outcome in several:
            got = self.ask_once()
            if got is not None:
                self.record(got, outcome)
            self.now += apart_s[apart]

    @precondition(lambda self: self.oracle.machine is State.CLOSED)
    @rule(outcome=st.sampled_from([Outcome.FAILURE, Outcome.SLOW]))
    def trouble(self, outcome: Outcome) -> None:
        self.several(outcome, 6, State.CLOSED)

    @precondition(lambda self: self.oracle.machine is State.OPEN and not self.oracle.metrics_only)
    @rule(off=st.sampled_from([-drawn.TICK_S, 0.0, 0.0, drawn.TICK_S]))
    def sit_it_out(self, off: float) -> None:
        self.now = max(self.now, self.oracle.ends_s() + off)
        self.ask_once()

    @precondition(lambda self: self.oracle.places())
    @rule(off=st.sampled_from([-drawn.TICK_S, 0.0, drawn.TICK_S]), outcome=st.none() | outcomes)
    def sit_a_lease_out(self, off: float, outcome: Outcome | None) -> None:
        self.now = max(self.now, min(self.oracle.places().values()) + self.by.lease_s + off)
        self.ask_once()
        if outcome is not None and self.newest is not None:
            self.record(self.newest, outcome)

    @precondition(lambda self: self.oracle.effective(self.now) is State.HALF_OPEN)
    @rule()
    def recovery(self) -> None:
        self.several(Outcome.SUCCESS, 4, State.HALF_OPEN, State.OPEN)

    @precondition(lambda self: self.oracle.machine is State.RAMPING)
    @rule(wait=st.booleans())
    def a_step_of_the_ramp(self, wait: bool) -> None:
        self.several(Outcome.SUCCESS, 9, State.RAMPING)
        self.now += self.by.ramp_step_s if wait else 0.0

    def several(self, outcome: Outcome, times: int, *states: State) -> None:
        """So many calls with the same outcome, while the breaker is in one of these states."""
        for _ in range(times):
            if self.oracle.machine in states:
                got = self.ask_once()
                if got is not None:
                    self.record(got, outcome)

    @rule(pass_=passes, outcome=outcomes)
    def settle(self, pass_: Pass, outcome: Outcome) -> None:
        self.record(pass_, outcome)

    @precondition(lambda self: self.newest is not None)
    @rule(outcome=outcomes)
    def settle_the_newest(self, outcome: Outcome) -> None:
        assert self.newest is not None
        self.record(self.newest, outcome)

    @rule(outcome=outcomes, ahead=st.integers(1, 3))
    def settle_a_foreign_pass(self, outcome: Outcome, ahead: int) -> None:
        self.record(Pass(self.breaker.generation + ahead, ahead), outcome)

    # --- time ---

    @rule(span_s=st.sampled_from(drawn.SPANS_S))
    def wait(self, span_s: float) -> None:
        self.now += span_s

    @rule(index=st.integers(0, 5), off=st.sampled_from([-drawn.TICK_S, 0.0, 0.0, drawn.TICK_S]))
    def wait_until_something_ends(self, index: int, off: float) -> None:
        ends = [end for end in self.ends() if end + off > self.now]
        if ends:
            self.now = ends[index % len(ends)] + off

    @precondition(with_a(Guest.CLOCK))
    @rule(span_s=st.sampled_from(drawn.STEPS_BACK_S))
    def step_back(self, span_s: float) -> None:
        self.now -= span_s

    # --- verbs ---

    @precondition(with_a(Guest.OPERATOR))
    @rule(verb=st.sampled_from(["force_open", "disable", "metrics_only", "reset", "reset"]))
    def operate(self, verb: str) -> None:
        self.both(lambda breaker, now: getattr(breaker, verb)(now))
        to = {"force_open": State.FORCED_OPEN, "disable": State.DISABLED}.get(verb, State.CLOSED)
        self.oracle.operate(to, self.now, metrics_only=verb == "metrics_only")
        if verb == "metrics_only":
            self.lease(on=False)

    @precondition(with_a(Guest.OPERATOR))
    @rule(duration_s=st.sampled_from([0.125, 2.0, 7.0, 500.0]))
    def open_for(self, duration_s: float) -> None:
        self.both(lambda breaker, now: breaker.open_for(duration_s, Cause.RETRY_AFTER, now))
        self.oracle.open_for(duration_s, Cause.RETRY_AFTER, self.now)

    # --- the fleet ---

    def lease(self, *, on: bool) -> None:
        self.breaker.leased = self.twin.leased = self.oracle.leased = on

    @precondition(with_a(Guest.FLEET))
    @precondition(lambda self: not self.oracle.metrics_only)
    @rule(on=st.booleans())
    def the_fleet_comes_or_goes(self, on: bool) -> None:
        self.lease(on=on)

    @precondition(lambda self: self.oracle.leased and self.oracle.effective(self.now) is State.HALF_OPEN)
    @rule(target=passes, rounds=st.integers(0, 2), news=st.integers(0, 1))
    def the_fleet_grants(self, rounds: int, news: int) -> Pass:
        self.fence += 1
        self.version += news
        lease = Lease(self.fence, self.version, rounds)
        got, other = self.both(lambda breaker, now: breaker.grant(lease, now))
        assert got == other
        assert isinstance(got, Pass)
        assert got.serial > 0
        assert got.fence == self.fence
        self.known = max(self.version, self.known)
        self.oracle.granted(got, rounds, self.now)
        assert got.generation == self.oracle.generation
        self.hold(got)
        return got

    @precondition(with_a(Guest.FLEET))
    @precondition(lambda self: not self.oracle.metrics_only)
    @rule(told=st.sampled_from(FLEET), wait_s=st.sampled_from([0.125, 3.0]), rounds=st.integers(0, 2))
    def the_fleet_tells(self, told: tuple[State, Cause], wait_s: float, rounds: int) -> None:
        state, cause = told
        self.version += 1
        remote = Remote(self.version, state, wait_s if state is State.OPEN else 0.0, rounds, cause)
        if not self.oracle.decided_here or state in OPERATED or cause is Cause.OPERATOR:
            self.known = self.version
        self.both(lambda breaker, now: breaker.adopt(remote, now))
        self.oracle.adopt(remote, self.now)

    @precondition(lambda self: self.known >= 0)
    @rule(told=st.sampled_from(FLEET), older=st.integers(0, 2))
    def the_fleet_tells_what_is_old(self, told: tuple[State, Cause], older: int) -> None:
        before = self.breaker.view(self.now)
        remote = Remote(self.known - older, told[0], 5.0, 1, told[1])
        self.both(lambda breaker, now: breaker.adopt(remote, now))
        assert self.breaker.view(self.now) == before

    # --- looking ---

    @rule(text=st.sampled_from(["", "TimeoutError: it took too long", "ValueError: " + "x" * 300]))
    def look(self, text: str) -> None:
        """None of this changes anything but the newest failure's text."""
        self.both(lambda breaker, now: breaker.fail_note(text))
        self.note = text[:200]
        assert repr(self.breaker).startswith("<Breaker 'it' ")
        assert self.breaker.state(self.now) is self.oracle.effective(self.now)
        assert self.breaker.view(self.now) == self.breaker.view(self.now)
        if self.oracle.machine not in OPERATED:
            self.life_goes_on()
        enforced = not self.oracle.metrics_only and not self.oracle.leased
        if enforced and self.oracle.machine is State.OPEN and self.oracle.rest_s(self.now) > 0:
            self.the_brink()

    def life_goes_on(self) -> None:
        """After the longest wait and the longest lease a call is let through, in a ramp one of so many."""
        later = copy.deepcopy(self.breaker)
        wait_s = self.oracle.rest_s(self.now) if self.oracle.machine is State.OPEN else 0.0
        now = max(self.now, self.oracle.latest) + max(wait_s, 0.0) + self.by.lease_s
        asks = math.ceil(1 / min(self.by.ramp, default=1.0))
        answers = [later.allow(now) for _ in range(asks)]
        assert any(isinstance(answer, Pass) or answer.lease_wanted for answer in answers)

    def the_brink(self) -> None:
        """Refused until the last moment, and then as many at once as there are places."""
        end, later = self.oracle.ends_s(), copy.deepcopy(self.breaker)
        assert isinstance(later.allow(math.nextafter(end, 0.0)), Refusal)
        answers = [later.allow(end) for _ in range(10)]
        assert sum(isinstance(answer, Pass) for answer in answers) == self.by.half_open_max

    @rule()
    def drain(self) -> None:
        mine, other = self.breaker.drain(), self.twin.drain()
        assert [replace(told, at_s=told.at_s + APART_S) for told in mine] == other
        self.drained += mine
        assert len(self.drained) == len(self.oracle.told)
        for told, expected in zip(self.drained, self.oracle.told, strict=True):
            open_ = told.after is State.OPEN
            assert told == (expected if open_ else replace(expected, rounds=told.rounds, retry_after_s=0.0))

    # --- what is always so ---

    @invariant()
    def both_look_the_same(self) -> None:
        view, oracle, rules = self.breaker.view(self.now), self.oracle, self.by
        machine = oracle.machine
        assert view.name == "it"
        assert (view.state, view.machine) == (oracle.effective(self.now), machine)
        assert view.metrics_only is oracle.metrics_only
        assert view.generation == self.breaker.generation == oracle.generation
        assert self.twin.generation == oracle.generation
        held, halfway = len(oracle.places()), machine is State.HALF_OPEN
        assert view.trials == (held if halfway else 0)
        assert view.in_flight == held
        assert view.won == (recount.won(oracle.log) if halfway else 0)
        assert view.streak == (0 if halfway else recount.streak(oracle.log, rules))
        if machine in {State.OPEN, *recount.AGAIN}:
            assert view.rounds == recount.rounds(oracle.log)
        assert view.retry_after_s == self.rest_s()
        if machine is State.OPEN:
            assert (view.cause, view.opened_s) == (oracle.why(), recount.newest(oracle.log).at)
        if machine is State.CLOSED:
            assert view.opened_s is None

    def rest_s(self) -> float:
        if self.oracle.machine is State.FORCED_OPEN:
            return self.by.open_s
        return max(0.0, self.oracle.rest_s(self.now)) if self.oracle.machine is State.OPEN else 0.0

    @invariant()
    def the_window_is_one_of_those_allowed(self) -> None:
        view, allowed = self.breaker.view(self.now), set()
        if self.oracle.machine in {State.CLOSED, State.RAMPING}:
            for window in self.oracle.windows(self.now):
                failures = sum(recount.failed(result, self.by) for result in window)
                slow = sum(result.outcome is Outcome.SLOW for result in window)
                allowed.add((len(window), failures, slow))
        counted = (view.window_calls, view.window_failures, view.window_slow)
        assert counted in (allowed or {(0, 0, 0)})

    @invariant()
    def what_is_counted(self) -> None:
        view, denied = self.breaker.view(self.now), recount.denied(self.oracle.log)
        refused: dict[Cause, int] = {}
        for entry in denied:
            if entry.really:
                refused[entry.cause] = refused.get(entry.cause, 0) + 1
        assert nonzero(view.refused) == refused
        assert view.would_refuse == self.breaker.would_refuse == sum(not entry.really for entry in denied)
        assert view.stale_results == self.breaker.stale_results == recount.late(self.oracle.log)
        assert view.last_failure == self.note

    @invariant()
    def the_short_way_is_the_long_way(self) -> None:
        breaker, now = self.breaker, self.now
        closed = self.oracle.machine is State.CLOSED and not self.oracle.metrics_only
        if not (closed and not self.by.max_in_flight):
            assert breaker.fast is None
            return
        assert breaker.fast == Pass(self.oracle.generation)
        if breaker.clean:
            later = copy.deepcopy(breaker)
            later.record(breaker.fast, Outcome.SUCCESS, now)
            assert bare(later.view(now)) == bare(breaker.view(now))
            assert later.drain() == copy.deepcopy(breaker).drain()

    @invariant()
    def a_ramp_admits_its_share(self) -> None:
        if self.oracle.machine is State.RAMPING:
            assert 0 <= recount.credit(self.oracle.log) < 1

    def teardown(self) -> None:
        if not hasattr(self, "breaker"):
            return
        self.drain()
        view, other = self.both(lambda breaker, now: breaker.view(now))
        if other.opened_s is not None:
            other = replace(other, opened_s=other.opened_s - APART_S)
        assert view == other


def nonzero(counts: Mapping[Cause, int]) -> dict[Cause, int]:
    return {cause: count for cause, count in counts.items() if count}


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=50, report_multiple_bugs=False
)


def test_the_modes_of_a_start() -> None:
    states = {mode: Breaker("it", Rules(mode=mode), 0.0).state(0.0) for mode in Mode}
    assert states == {
        Mode.ENFORCE: State.CLOSED,
        Mode.METRICS_ONLY: State.CLOSED,
        Mode.DISABLED: State.DISABLED,
    }
