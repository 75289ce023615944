"""The breaker beside its oracle: whatever comes in whatever order, both answer the same and look the same.

A second breaker lives through the same, at times that are a constant greater, and is never looked at.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from autoglm_throttle.resilience.breaker import Breaker
from autoglm_throttle.resilience.transitions import BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerCause,
    BreakerMode,
    BreakerState,
    GuardPermit,
    GuardRejection,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
)
from tests.resilience.oracle import drawn, recount
from tests.resilience.oracle.beside import APART_S, Beside, bare
from tests.resilience.oracle.oracle import OPERATED

OUTCOMES = (Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL)
TICKS_S = (-drawn.TICK_S, 0.0, 0.0, drawn.TICK_S)
FLEET = (
    (BreakerState.CLOSED, BreakerCause.TRIAL),
    (BreakerState.CLOSED, BreakerCause.OPERATOR),
    (BreakerState.OPEN, BreakerCause.FAILURES),
    (BreakerState.OPEN, BreakerCause.TRIAL),
    (BreakerState.HALF_OPEN, BreakerCause.FAILURES),
    (BreakerState.FORCED_OPEN, BreakerCause.OPERATOR),
    (BreakerState.DISABLED, BreakerCause.OPERATOR),
)


class ConcurrentCaller(Enum):
    """Concurrent callers of a run; a run without them progresses furthest."""

    FLEET = auto()
    OPERATOR = auto()
    CLOCK = auto()
    """It steps back."""


ALWAYS = (
    "request",
    "request",
    "call",
    "settle",
    "settle",
    "settle_newest",
    "wait",
    "wait_until_an_end",
    "look",
    "drain",
)
THEN = {
    BreakerState.CLOSED: ("error", "error", "error", *["results_come"] * 4, "wait_until_an_end"),
    BreakerState.OPEN: ("sit_it_out", "sit_it_out", "sit_it_out", "sit_it_out"),
    BreakerState.HALF_OPEN: ("request", "request", "recovery", "recovery", "settle_newest"),
    BreakerState.RAMPING: ("request", "results_come", *["climb"] * 6),
    BreakerState.FORCED_OPEN: ("operate",),
    BreakerState.DISABLED: ("operate",),
}
"""Weights of the actions in each state, so that random runs progress."""
COMMANDS = (
    *(BreakerEvent.FORCE, BreakerEvent.DISABLE, BreakerEvent.METRICS_ONLY),
    *(BreakerEvent.RESET, BreakerEvent.RESET, BreakerEvent.RESET),
)
STARTS = (BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.OPEN, BreakerState.RAMPING)
GUESTS = {
    ConcurrentCaller.FLEET: ("lease", "grant", "receive", "receive", "receive", "receive_old_update"),
    ConcurrentCaller.OPERATOR: ("operate", "open_for"),
    ConcurrentCaller.CLOCK: ("step_back", "step_back"),
}


class BreakerMachine(Beside, RuleBasedStateMachine):
    """Two breakers and an oracle, and all passes that were ever given."""

    @initialize(
        rules=drawn.rules(), guests=st.sets(st.sampled_from(ConcurrentCaller)), start=st.sampled_from(STARTS)
    )
    def begin(self, rules: BreakerSettings, guests: set[ConcurrentCaller], start: BreakerState) -> None:
        self.set_out(rules, guests, start)

    def set_out(self, rules: BreakerSettings, guests: set[ConcurrentCaller], start: BreakerState) -> None:
        self.be_born(rules)
        self.guests = guests
        self.passes = [GuardPermit(self.breaker.generation + 3, 2)]
        if start is not BreakerState.CLOSED:
            self.while_it_is(BreakerState.CLOSED, Outcome.FAILURE, 6)
        if start is BreakerState.RAMPING and self.oracle.machine is BreakerState.OPEN:
            self.now = self.oracle.ends_s()
            self.called(Outcome.SUCCESS)
            self.while_it_is(BreakerState.HALF_OPEN, Outcome.SUCCESS, 4)

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        can = [*THEN[self.oracle.machine], *ALWAYS, *["sit_a_lease_out"] * 2 * bool(self.oracle.places())]
        for concurrent_caller in self.guests:
            can += GUESTS[concurrent_caller]
        what = data.draw(st.sampled_from(can), "what")
        getattr(self, what)(data)

    # --- calls ---

    def outcome(self, data: st.DataObject) -> Outcome:
        return data.draw(st.sampled_from(OUTCOMES), "outcome")

    def request(self, data: st.DataObject) -> GuardPermit | None:
        got = self.request_once(fast=data.draw(st.booleans(), "fast"))
        if got is not None:
            self.passes.append(got)
        return got

    def call(self, data: st.DataObject) -> None:
        got = self.request(data)
        if got is not None:
            self.record(got, self.outcome(data))

    def settle(self, data: st.DataObject) -> None:
        """Settle any call ever admitted, or one of another breaker."""
        back = data.draw(st.integers(0, 9), "which, from the newest")
        self.record(self.passes[-1 - back % len(self.passes)], self.outcome(data))

    def settle_newest(self, data: st.DataObject) -> None:
        self.record(self.passes[-1], self.outcome(data))

    def results_come(self, data: st.DataObject) -> None:
        """Calls one after another, at distances that the windows of time are made of."""
        apart_s = (0.0, drawn.TICK_S, (self.by.window_s or 10.0) / 10, self.by.failure_window_s or 0.5)
        span_s = data.draw(st.sampled_from(apart_s), "apart")
        for outcome in data.draw(st.lists(st.sampled_from(OUTCOMES), min_size=2, max_size=6), "outcomes"):
            self.called(outcome)
            self.now += span_s

    def error(self, data: st.DataObject) -> None:
        outcome = data.draw(st.sampled_from([Outcome.FAILURE, Outcome.SLOW]), "trouble")
        self.while_it_is(BreakerState.CLOSED, outcome, 6)

    def recovery(self, data: st.DataObject) -> None:
        self.while_it_is(BreakerState.HALF_OPEN, Outcome.SUCCESS, data.draw(st.integers(1, 4), "trials"))

    def climb(self, data: st.DataObject) -> None:
        """Through a step of a ramp."""
        self.while_it_is(BreakerState.RAMPING, Outcome.SUCCESS, data.draw(st.integers(1, 9), "calls"))
        self.now += data.draw(st.sampled_from([0.0, self.by.ramp_step_s]), "wait")

    def while_it_is(self, state: BreakerState, outcome: Outcome, times: int) -> None:
        for _ in range(times):
            if self.oracle.machine is state:
                self.called(outcome)

    def called(self, outcome: Outcome) -> None:
        got = self.request_once()
        if got is not None:
            self.passes.append(got)
            self.record(got, outcome)

    # --- time ---

    def wait(self, data: st.DataObject) -> None:
        self.now += data.draw(st.sampled_from(drawn.SPANS_S), "wait")

    def wait_until_an_end(self, data: st.DataObject) -> None:
        off = data.draw(st.sampled_from(TICKS_S), "off")
        ends = [end + off for end in self.ends() if end + off > self.now]
        if ends:
            self.now = data.draw(st.sampled_from(ends), "until")

    def sit_it_out(self, data: st.DataObject) -> None:
        self.now = max(self.now, self.oracle.ends_s() + data.draw(st.sampled_from(TICKS_S), "off"))
        self.request(data)

    def sit_a_lease_out(self, data: st.DataObject) -> None:
        """Settle late, before or after another request; only probes are late."""
        slowest, since = min(self.oracle.places().items(), key=lambda place: place[1])
        self.now = max(self.now, since + self.by.lease_s + data.draw(st.sampled_from(TICKS_S), "off"))
        if data.draw(st.booleans(), "somebody asks"):
            self.request(data)
        if data.draw(st.booleans(), "it ends"):
            self.record(slowest, self.outcome(data))

    def step_back(self, data: st.DataObject) -> None:
        self.now -= data.draw(st.sampled_from(drawn.STEPS_BACK_S), "step back")

    # --- verbs ---

    def operate(self, data: st.DataObject) -> None:
        self.decide(data.draw(st.sampled_from(COMMANDS), "command"))

    def decide(self, command: BreakerEvent) -> None:
        self.both(lambda breaker, now: breaker.operate(command, now))
        to = {BreakerEvent.FORCE: BreakerState.FORCED_OPEN, BreakerEvent.DISABLE: BreakerState.DISABLED}.get(
            command, BreakerState.CLOSED
        )
        self.oracle.operate(to, self.now, metrics_only=command is BreakerEvent.METRICS_ONLY)

    def open_for(self, data: st.DataObject) -> None:
        duration_s = data.draw(st.sampled_from([0.125, 2.0, 7.0, 500.0]), "open for")
        self.both(lambda breaker, now: breaker.open_for(duration_s, now))
        self.oracle.open_for(duration_s, BreakerCause.RETRY_AFTER, self.now)

    # --- the fleet ---

    def lease(self, data: st.DataObject) -> None:
        on = data.draw(st.booleans(), "leased")
        self.oracle.leased = on
        for breaker in (self.breaker, self.replica):
            breaker.slots.lease_required = on

    def grant(self, data: st.DataObject) -> None:
        if self.oracle.effective(self.now) is not BreakerState.HALF_OPEN:
            return
        self.fence += 1
        self.version += data.draw(st.integers(0, 1), "news")
        lease = ProbeLease(self.fence, self.version, data.draw(st.integers(0, 2), "rounds"))
        got, other = self.both(lambda breaker, now: breaker.grant_probe(lease, now))
        assert isinstance(got, GuardPermit)
        assert got == other
        assert got.fence == self.fence
        self.known = max(self.version, self.known)
        self.oracle.granted(got, lease.rounds, self.now)
        self.hold(got)
        self.passes.append(got)

    def receive(self, data: st.DataObject) -> None:
        if self.oracle.metrics_only:
            return
        state, cause = data.draw(st.sampled_from(FLEET), "the fleet is")
        wait_s = data.draw(st.sampled_from([0.125, 3.0]), "for") if state is BreakerState.OPEN else 0.0
        self.version += 1
        remote = RemoteBreakerState(
            self.version, state, wait_s, data.draw(st.integers(0, 2), "rounds"), cause
        )
        if not self.oracle.decided_here or state in OPERATED or cause is BreakerCause.OPERATOR:
            self.known = self.version
        self.both(lambda breaker, now: breaker.adopt(remote, now))
        self.oracle.adopt(remote, self.now)

    def receive_old_update(self, data: st.DataObject) -> None:
        """Receive an update of a known version, or an older one."""
        state, cause = data.draw(st.sampled_from(FLEET), "the fleet was")
        remote = RemoteBreakerState(self.known - data.draw(st.integers(0, 2), "older"), state, 5.0, 1, cause)
        if self.known >= 0:
            before = self.breaker.view(self.now)
            self.both(lambda breaker, now: breaker.adopt(remote, now))
            assert self.breaker.view(self.now) == before

    # --- looking ---

    def look(self, data: st.DataObject) -> None:
        """None of this changes anything but the newest failure's text."""
        text = data.draw(st.sampled_from(["", "TimeoutError: too long", "ValueError: " + "x" * 300]), "note")
        self.both(lambda breaker, now: breaker.record_failure_text(text))
        self.note = text[:200]
        assert self.breaker.state(self.now) is self.oracle.effective(self.now)
        assert self.breaker.view(self.now) == self.breaker.view(self.now)
        if self.oracle.machine not in OPERATED:
            self.life_goes_on()
        enforced = not self.oracle.metrics_only and not self.oracle.leased
        if enforced and self.oracle.machine is BreakerState.OPEN and self.oracle.rest_s(self.now) > 0:
            self.the_brink()

    def life_goes_on(self) -> None:
        """After the longest wait and the longest lease a call is let through, in a ramp one of so many.

        Where calls that are no trials hold all places, one of them has to end first.
        """
        later = copy.deepcopy(self.breaker)
        for held in self.oracle.running:
            later.record(held, Outcome.NEUTRAL, self.now)
        wait_s = self.oracle.rest_s(self.now) if self.oracle.machine is BreakerState.OPEN else 0.0
        now = max(self.now, self.oracle.latest) + max(wait_s, 0.0) + self.by.lease_s
        requests = math.ceil(1 / min(self.by.ramp, default=1.0))
        answers = [later.allow(now) for _ in range(requests)]
        assert any(isinstance(answer, GuardPermit) or answer.lease_wanted for answer in answers)

    def the_brink(self) -> None:
        """Refused until the last moment, and then as many at once as there are places."""
        end, later = self.oracle.ends_s(), copy.deepcopy(self.breaker)
        for held in self.oracle.running:
            later.record(held, Outcome.NEUTRAL, self.now)
        assert isinstance(later.allow(math.nextafter(end, 0.0)), GuardRejection)
        answers = [later.allow(end) for _ in range(10)]
        most = min(self.by.half_open_max, self.by.max_in_flight or self.by.half_open_max)
        assert sum(isinstance(answer, GuardPermit) for answer in answers) == most

    def drain(self, data: st.DataObject | None = None) -> None:
        mine, other = self.breaker.machine.drain(), self.replica.machine.drain()
        assert [replace(notified, at_s=notified.at_s + APART_S) for notified in mine] == other
        self.drained += mine
        assert len(self.drained) == len(self.oracle.notified)
        for notified, expected in zip(self.drained, self.oracle.notified, strict=True):
            open_ = notified.after is BreakerState.OPEN
            assert notified == (
                expected if open_ else replace(expected, rounds=notified.rounds, retry_after_s=0.0)
            )

    # --- what is always so ---

    @invariant()
    def both_look_the_same(self) -> None:
        view, oracle = self.breaker.view(self.now), self.oracle
        machine = oracle.machine
        assert view.name == "it"
        assert (view.state, view.machine) == (oracle.effective(self.now), machine)
        assert view.metrics_only is oracle.metrics_only
        assert view.generation == self.breaker.generation == oracle.generation
        assert self.replica.generation == oracle.generation
        held, halfway = len(oracle.places()), machine is BreakerState.HALF_OPEN
        inside = oracle.inside(self.now) if self.by.max_in_flight else held
        assert (view.probes, view.in_flight) == (held if halfway else 0, inside)
        assert view.probe_successes == (recount.won(oracle.log) if halfway else 0)
        assert view.streak == (0 if halfway else recount.streak(oracle.log, self.by))
        assert view.retry_after_s == self.rest_s()
        if machine in {BreakerState.OPEN, *recount.AGAIN}:
            assert view.rounds == recount.rounds(oracle.log)
        if machine is BreakerState.OPEN:
            assert (view.cause, view.opened_s) == (oracle.why(), recount.newest(oracle.log).at)
        if machine is BreakerState.CLOSED:
            assert view.opened_s is None

    def rest_s(self) -> float:
        if self.oracle.machine is BreakerState.FORCED_OPEN:
            return self.by.open_s
        return max(0.0, self.oracle.rest_s(self.now)) if self.oracle.machine is BreakerState.OPEN else 0.0

    @invariant()
    def the_window_is_one_of_those_allowed(self) -> None:
        view, allowed = self.breaker.view(self.now), set()
        if self.oracle.machine in {BreakerState.CLOSED, BreakerState.RAMPING}:
            for window in self.oracle.windows(self.now):
                failures = sum(recount.failed(result, self.by) for result in window)
                slow = sum(result.outcome is Outcome.SLOW for result in window)
                allowed.add((len(window), failures, slow))
        counted = (view.window_calls, view.window_failures, view.window_slow)
        assert counted in (allowed or {(0, 0, 0)})

    @invariant()
    def what_is_counted(self) -> None:
        view, denied = self.breaker.view(self.now), recount.denied(self.oracle.log)
        rejected: dict[BreakerCause, int] = {}
        for entry in denied:
            if entry.really:
                rejected[entry.cause] = rejected.get(entry.cause, 0) + 1
        assert nonzero(view.rejected) == rejected
        assert view.would_reject == self.breaker.would_reject == sum(not entry.really for entry in denied)
        assert view.stale_results == self.breaker.stale_results == recount.late(self.oracle.log)
        assert view.last_failure == self.note

    @invariant()
    def the_short_way_is_the_long_way(self) -> None:
        breaker, now = self.breaker, self.now
        closed = self.oracle.machine is BreakerState.CLOSED and not self.oracle.metrics_only
        if not (closed and not self.by.max_in_flight):
            assert breaker.fast.permit is None
            return
        assert breaker.fast.permit == GuardPermit(self.oracle.generation)
        if breaker.fast.success_is_noop:
            later = copy.deepcopy(breaker)
            later.record(breaker.fast.permit, Outcome.SUCCESS, now)
            assert bare(later.view(now)) == bare(breaker.view(now))
            assert later.machine.drain() == copy.deepcopy(breaker).machine.drain()

    @invariant()
    def a_ramp_admits_its_share(self) -> None:
        if self.oracle.machine is BreakerState.RAMPING:
            assert 0 <= recount.credit(self.oracle.log) < 1

    def teardown(self) -> None:
        if not hasattr(self, "breaker"):
            return
        self.drain()
        view, other = self.both(lambda breaker, now: breaker.view(now))
        if other.opened_s is not None:
            other = replace(other, opened_s=other.opened_s - APART_S)
        assert view == other


def nonzero(counts: Mapping[BreakerCause, int]) -> dict[BreakerCause, int]:
    return {cause: count for cause, count in counts.items() if count}


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(stateful_step_count=50, report_multiple_bugs=False)


def test_the_modes_of_a_start() -> None:
    states = {mode: Breaker("it", BreakerSettings(mode=mode)).state(0.0) for mode in BreakerMode}
    assert states == {
        BreakerMode.ENFORCE: BreakerState.CLOSED,
        BreakerMode.METRICS_ONLY: BreakerState.CLOSED,
        BreakerMode.DISABLED: BreakerState.DISABLED,
    }
