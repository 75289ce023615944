"""Properties of a breaker under any sequence of events. Times are eighths of a second: sums are exact."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.breaker import UNRECORDED_PERMIT, Breaker
from autoglm_throttle.resilience.transitions import OPERATOR_STATES, BreakerEvent
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import (
    BreakerMode,
    BreakerState,
    BreakerTransition,
    BreakerView,
    GuardPermit,
    GuardRejection,
    Outcome,
    SlowCallMode,
    TripRule,
)

START_S = 1000.0
LEASE_S = 4.0

rules = st.builds(
    lambda window, **values: BreakerSettings(**window, **values),
    window=st.sampled_from([{"window": 4}, {"window_s": 5.0}, {}]),
    failures=st.integers(1, 3),
    open_s=st.sampled_from([1.0, 3.0]),
    backoff=st.sampled_from([1.0, 2.0]),
    open_max_s=st.sampled_from([None, 5.0]),
    half_open_max=st.integers(1, 3),
    success_threshold=st.sampled_from([None, None, 2]),
    trial_lease_s=st.just(LEASE_S),
    trip=st.sets(st.sampled_from(TripRule), min_size=1).map(frozenset),
    min_calls=st.just(2),
    slow_is=st.sampled_from(SlowCallMode),
    ramp=st.sampled_from([(), (0.25, 0.5)]),
    ramp_step_s=st.just(1.0),
    max_in_flight=st.sampled_from([0, 0, 3]),
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from(Outcome)),
        st.tuples(st.just("call"), st.sampled_from([Outcome.SUCCESS, Outcome.FAILURE])),
        st.tuples(st.just("ask"), st.none()),
        st.tuples(st.just("end"), st.tuples(st.integers(0, 20), st.sampled_from(Outcome))),
        st.tuples(st.just("wait"), st.sampled_from([0.125, 1.0, 1.0, 3.0, 4.0, -0.5])),
        st.tuples(st.just("open_for"), st.sampled_from([0.5, 6.0])),
        st.tuples(st.just("RESET"), st.none()),
    ),
    max_size=50,
)
verbs = st.lists(
    st.one_of(acts, st.sampled_from(["FORCE", "DISABLE", "METRICS_ONLY"]).map(lambda name: [(name, None)])),
    max_size=4,
).map(lambda parts: [act for part in parts for act in part])


@dataclass
class Life:
    """A breaker, its clock, and the passes that it has given."""

    core: Breaker
    now: float
    passes: list[GuardPermit]
    watch: Callable[[Life], None]

    def live(self, some: list[tuple[str, Any]]) -> Life:
        for act in some:
            self.do(*act)
            self.watch(self)
        return self

    def do(self, act: str, value: Any) -> None:
        core = self.core
        if act == "wait":
            self.now += value
        elif act == "open_for":
            core.open_for(value, self.now)
        elif act == "end":
            which, outcome = value
            if which < len(self.passes):
                core.record(self.passes[-1 - which], outcome, self.now)
        elif act in {"ask", "call"}:
            answer = core.allow(self.now)
            if isinstance(answer, GuardPermit):
                self.passes.append(answer)
                if act == "call":
                    core.record(answer, value, self.now)
        else:
            core.operate(BreakerEvent[act], self.now)


def life(
    some: BreakerSettings, start_s: float = START_S, watch: Callable[[Life], None] = lambda _: None
) -> Life:
    return Life(Breaker("it", some), start_s, [], watch)


def without_counts(view: BreakerView) -> BreakerView:
    return replace(view, calls=0, rejected={}, would_reject=0, stale_results=0)


@given(some=rules, way=acts)
def test_open_breaker_rejects_until_its_time_then_admits_probes(
    some: BreakerSettings, way: list[tuple[str, Any]]
) -> None:
    def check(it: Life) -> None:
        view = it.core.view(it.now)
        if view.state is BreakerState.OPEN:
            assert view.opened_s is not None
            core, end = copy.deepcopy(it.core), max(it.now, view.opened_s) + view.retry_after_s
            assert isinstance(core.allow(math.nextafter(end, 0.0)), GuardRejection)
            in_flight = core.view(end).in_flight if some.max_in_flight else 0
            most = min(some.half_open_max, (some.max_in_flight or math.inf) - in_flight)
            answers = [core.allow(end) for _ in range(5)]
            assert [isinstance(answer, GuardPermit) for answer in answers].count(True) == most

    life(some, watch=check).live(way)


@given(some=rules, way=acts)
def test_probes_never_exceed_the_slots(some: BreakerSettings, way: list[tuple[str, Any]]) -> None:
    def check(it: Life) -> None:
        view = it.core.view(it.now)
        assert view.probes <= some.half_open_max
        assert view.probe_successes < some.successes_needed or not view.probe_successes
        if some.success_threshold is None:
            assert view.probes + view.probe_successes <= some.half_open_max

    life(some, watch=check).live(way)


@given(
    way=st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 600)),
            st.tuples(st.sampled_from(Outcome), st.integers(0, 3)),
        ),
        max_size=40,
    )
)
def test_ordinary_call_holds_its_slot_until_one_result(
    way: list[tuple[str | Outcome, int]],
) -> None:
    core = Breaker("it", BreakerSettings(max_in_flight=3, failures=10_000, trial_lease_s=86_400))
    held: list[GuardPermit] = []
    now = START_S
    for what, figure in way:
        if not isinstance(what, Outcome):
            now += figure
            foreseen, answer = core.rejection(now), core.allow(now)
            assert (
                isinstance(answer, GuardRejection) == isinstance(foreseen, GuardRejection) == (len(held) == 3)
            )
            held += [answer] if isinstance(answer, GuardPermit) else []
        elif figure < len(held):
            ended, late = held.pop(figure), core.stale_results
            for times in (0, 1):
                core.record(ended, what, now)
                assert core.stale_results == late + times
        assert core.view(now).in_flight == len(held)


@given(some=rules, way=verbs, outcome=st.sampled_from(Outcome))
def test_a_result_that_is_nobodys_changes_nothing(
    some: BreakerSettings, way: list[tuple[str, Any]], outcome: Outcome
) -> None:
    it = life(some).live(way)
    before = without_counts(it.core.view(it.now))
    it.core.record(GuardPermit(it.core.generation + 1), outcome, it.now)
    for old in it.passes:
        if old.generation != it.core.generation:
            it.core.record(old, outcome, it.now)
    it.core.record(GuardPermit(it.core.generation), Outcome.NEUTRAL, it.now)
    # A late result of an earlier generation ends its call, and nothing else.
    after = without_counts(it.core.view(it.now))
    assert after.in_flight <= before.in_flight
    assert replace(after, in_flight=before.in_flight) == before


@given(some=rules, way=verbs)
def test_sooner_or_later_a_call_is_let_in(some: BreakerSettings, way: list[tuple[str, Any]]) -> None:
    it = life(some)
    latest = START_S
    for act in way:
        it.do(*act)
        latest = max(latest, it.now)
    if it.core.state(it.now) in OPERATOR_STATES:
        return
    if it.core.state(it.now) in {
        BreakerState.CLOSED,
        BreakerState.RAMPING,
    }:  # but calls that hold all places must end
        for pass_ in it.passes:
            it.core.record(pass_, Outcome.NEUTRAL, it.now)
    later = latest + it.core.view(it.now).retry_after_s + LEASE_S
    requests = math.ceil(1 / min(some.ramp, default=1.0))
    assert any(isinstance(it.core.allow(later), GuardPermit) for _ in range(requests))


@given(some=rules, way=verbs)
def test_transitions_form_a_chain_with_rising_generations(
    some: BreakerSettings, way: list[tuple[str, Any]]
) -> None:
    notified: list[BreakerTransition] = []
    generations = [0]

    def check(it: Life) -> None:
        notified.extend(it.core.machine.drain())
        assert 0 <= it.core.generation - generations[-1] <= 2, "a call begins its trial and ends it"
        generations.append(it.core.generation)

    it = life(some, watch=check).live(way)
    states = [BreakerState.CLOSED, *(step.after for step in notified)]
    assert [step.before for step in notified] == states[:-1]
    assert it.core.view(it.now).machine is states[-1]
    assert all(step.before is not step.after for step in notified)
    assert [step.generation for step in notified] == sorted({step.generation for step in notified})


@given(some=rules, way=verbs)
def test_views_and_clock_origin_do_not_change_the_state(
    some: BreakerSettings, way: list[tuple[str, Any]]
) -> None:
    def look(it: Life) -> None:
        core, now = it.core, it.now
        assert core.view(now) == core.view(now)
        foreseen = core.rejection(now)
        answer = copy.deepcopy(core).allow(now)
        assert foreseen == (answer if isinstance(answer, GuardRejection) else None)
        assert core.state(now) is core.view(now).state

    apart = 2.0**20
    looked = life(some, watch=look).live(way)
    other = life(some, START_S + apart).live(way)
    seen, unseen = looked.core.view(looked.now), other.core.view(other.now)
    if unseen.opened_s is not None:
        unseen = replace(unseen, opened_s=unseen.opened_s - apart)
    assert seen == unseen
    assert [
        replace(step, at_s=step.at_s + apart) for step in looked.core.machine.drain()
    ] == other.core.machine.drain()


@given(some=rules, way=acts.map(lambda way: [act for act in way if act[0] != "RESET"]))
def test_metrics_only_follows_the_same_states_without_rejecting(
    some: BreakerSettings, way: list[tuple[str, Any]]
) -> None:
    enforcing = life(some)
    counting = life(some.model_copy(update={"mode": BreakerMode.METRICS_ONLY}))
    refusals = 0
    for act in way:
        if act[0] == "end":
            continue
        counting.do(*act)
        refusals += bool(act[0] in {"ask", "call"} and counting.passes[-1] is UNRECORDED_PERMIT)
        enforcing.do(*act)
        mine, other = counting.core.view(counting.now), enforcing.core.view(enforcing.now)
        assert mine.would_reject == sum(other.rejected.values()) == refusals
        assert without_counts(replace(mine, metrics_only=False)) == without_counts(other)
    assert counting.core.view(counting.now).rejected == {}
    assert counting.core.machine.drain() == enforcing.core.machine.drain()


@given(some=rules, way=acts.map(lambda way: [act for act in way if act[0] != "RESET"]))
def test_disabled_counts_nothing(some: BreakerSettings, way: list[tuple[str, Any]]) -> None:
    it = life(some.model_copy(update={"mode": BreakerMode.DISABLED}))
    before = it.core.view(it.now)
    it.live(way)
    assert it.core.view(it.now) == before


@given(some=rules, way=acts)
def test_the_short_way_is_the_long_way(some: BreakerSettings, way: list[tuple[str, Any]]) -> None:
    def check(it: Life) -> None:
        core = it.core
        if core.fast.permit is not None:
            later = copy.deepcopy(core)
            assert later.allow(it.now) == core.fast.permit
            assert later.view(it.now) == replace(core.view(it.now), calls=core.fast.calls + 1)
            if core.fast.success_is_noop:
                later.record(core.fast.permit, Outcome.SUCCESS, it.now)
                assert later.view(it.now) == replace(core.view(it.now), calls=core.fast.calls + 1)
                assert later.fast.success_is_noop

    life(some, watch=check).live(way)
