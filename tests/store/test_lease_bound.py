"""Bounds of a fleet's admissions under failures of processes, store and clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings
from autoglm_throttle.store.fleet import LeasedBuckets
from autoglm_throttle.types import Decision, Demand, Priority
from tests.store.bucket_store import BucketStore
from tests.store.fleet_processes import Crowd

RATE, BURST_S = 64.0, 0.5
BURST = RATE * BURST_S
RATES = RateSettings(rate_high_rps=RATE, rate_mid_rps=RATE, rate_low_rps=RATE, burst_s=BURST_S)
LIVES_US = 15_000_000
EPSILON = 1e-3
"""Tokens: a micro-token for each call."""


@dataclass
class Scene:
    """Three processes and a store; each of them is led by the drawn steps."""

    store: BucketStore = field(default_factory=BucketStore)
    now: float = 100.0
    passed: float = 0.0
    """Seconds by which the store's clock has gone forward."""
    admitted: float = 0.0
    workers: list[LeasedBuckets] = field(default_factory=lambda: [fresh(100.0) for _ in range(3)])
    history: list[tuple[float, float, float]] = field(default_factory=list)

    def note(self) -> None:
        leased = sum(lease.tokens(self.now) for worker in self.workers for lease in worker.all)
        self.history.append((self.passed, self.admitted, leased))

    def check(self) -> None:
        for number, (passed, admitted, leased) in enumerate(self.history):
            for later_passed, later_admitted, _ in self.history[number:]:
                limit = BURST + RATE * (later_passed - passed) + leased
                assert later_admitted - admitted <= limit + EPSILON


def fresh(now: float) -> LeasedBuckets:
    return LeasedBuckets(RATES, FleetSettings(), now)


costs = st.sampled_from([0.25, 1.0, 2.5, 16.0, 32.0])
steps = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 2), st.floats(0.0, 1.5)),
    st.tuples(st.just("arrive"), st.integers(0, 2), costs),
    st.tuples(st.just("crowd"), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(
        st.just("call"), st.integers(0, 2), st.sampled_from(["told", "told", "told", "unheard", "unsaid"])
    ),
    st.tuples(st.just("hand back"), st.integers(0, 2), st.just(1.0)),
    st.tuples(st.just("die"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("clock"), st.integers(0, 2), st.integers(-5_000_000, -1)),
    st.tuples(st.just("cut"), st.integers(0, 2), st.sampled_from([1.0, 0.4, 0.0])),
)


def lead(scene: Scene, verb: str, index: int, value: float | str) -> None:  # noqa: C901 - one line a verb
    worker = scene.workers[index]
    if verb == "call":
        call(scene, worker, f"w{index}", str(value))
        return
    amount = float(value)
    if verb == "pass":
        scene.now += amount
        scene.passed += amount
        scene.store.clock_us += int(amount * 1e6)
    elif verb == "arrive":
        ask(scene, worker, amount)
    elif verb == "crowd":
        for _ in range(int(amount)):
            ask(scene, worker, 1.0)
    elif verb == "hand back":
        hand_back(scene, worker, amount)
    elif verb == "die":
        scene.workers[index] = fresh(scene.now)
    elif verb == "clock":
        scene.store.clock_us += int(amount)
    else:
        worker.rescale((1.0, amount, 1.0), scene.now)


def hand_back(scene: Scene, worker: LeasedBuckets, cost: float) -> None:
    """A request takes, leaves the queue and is charged nothing."""
    if worker.all[1].tokens(scene.now) >= cost:
        paid = worker.take(Demand(Priority.MID, cost=cost), scene.now)
        assert not isinstance(paid, Decision)
        paid.give_back(cost, scene.now)


def call(scene: Scene, worker: LeasedBuckets, name: str, fate: str) -> None:
    """A round trip, in which the question or the answer may be lost."""
    figures = worker.next_request(scene.now, beat=True)
    assert figures is not None
    if fate != "unsaid":
        reply = scene.store.call(name, LIVES_US, figures)
        if fate == "told":
            worker.apply_reply(reply, scene.now)


def ask(scene: Scene, worker: LeasedBuckets, cost: float) -> None:
    demand = Demand(Priority.MID, cost=cost)
    token = object()
    if worker.all[1].is_decidable(cost, scene.now):
        if not isinstance(worker.take(demand, scene.now), Decision):
            scene.admitted += cost
    else:
        worker.add_waiter(token, demand, scene.now)


@given(st.lists(steps, max_size=60))
def test_any_interval_admits_at_most_burst_rate_and_leases(
    drawn: list[tuple[str, int, float | str]],
) -> None:
    scene = Scene()
    scene.note()
    for verb, index, value in drawn:
        lead(scene, verb, index, value)
        scene.note()
    scene.check()


LOADS = [0.5, 0.9, 1.0, 1.1, 2.0, 10.0]


@pytest.mark.parametrize("share_of_first", [None, pytest.param(0.9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("burst_s", [0.2, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
def test_admitted_against_one_exact_bucket(
    workers: int, burst_s: float, share_of_first: float | None
) -> None:
    for load in LOADS:
        crowd = Crowd(workers, 100.0, burst_s)
        crowd.traffic(100.0 * load, 10.0, share_of_first)
        crowd.run(10.0)
        admitted = sum(cost for _, cost in crowd.admitted)
        assert 0.99 <= admitted / crowd.exact_admitted <= 1.01, load
        assert crowd.peak() <= 1.05 * crowd.burst, load
        assert max(worker.calls for worker in crowd.workers) <= 100 * 10.0, load


def test_a_founding_rate_of_a_thousand() -> None:
    crowd = Crowd(4, 1000.0, 0.2)
    crowd.traffic(2000.0, 3.0, 0.9)
    crowd.run(3.0)
    admitted = sum(cost for _, cost in crowd.admitted)
    assert 0.99 <= admitted / crowd.exact_admitted <= 1.01
    assert crowd.peak() <= 1.05 * crowd.burst
    assert max(worker.calls for worker in crowd.workers) <= 100 * 3.0


@pytest.mark.slow
def test_no_class_is_starved_by_the_calls_of_another() -> None:
    crowd = Crowd(2, 100.0, 1.0)
    for when in range(20_000):
        worker = crowd.workers[when % 2]
        for priority in Priority:
            demand = Demand(priority)
            crowd.at(when / 2000, partial(crowd.decide, worker, demand))
    crowd.run(10.0)
    assert len(crowd.admitted) == pytest.approx(3 * (100 + 100 * 10), rel=0.03)
    assert max(worker.calls for worker in crowd.workers) <= 100 * 10.0


def test_killed_process_lowers_sum_only_for_its_lease() -> None:
    crowd = Crowd(4, 100.0, 0.2)
    crowd.traffic(200.0, 10.0)
    crowd.at(5.0, lambda: crowd.kill(crowd.workers[0]))
    crowd.run(10.0)
    after = sum(cost for when, cost in crowd.admitted if 6.0 <= when < 10.0)
    assert after == pytest.approx(400.0, rel=0.05)


def test_the_ceilings_of_different_processes_average_out() -> None:
    crowd = Crowd(4, 100.0, 0.2)
    for worker, ceiling in zip(crowd.workers, (1.0, 1.0, 0.4, 0.4), strict=True):
        worker.leases.rescale((ceiling,) * 3, 0.0)
    crowd.traffic(400.0, 10.0)
    crowd.run(10.0)
    admitted = sum(cost for _, cost in crowd.admitted)
    assert admitted == pytest.approx(20 + 70 * 10, rel=0.05)


def test_bound_holds_during_outage_and_recovery() -> None:
    crowd = Crowd(4, 100.0, 0.2)
    crowd.traffic(200.0, 12.0)
    crowd.at(4.0, lambda: crowd.cut(True))
    crowd.at(8.0, lambda: crowd.cut(False))
    crowd.run(12.0)
    during = sum(cost for when, cost in crowd.admitted if 4.5 <= when < 8.0)
    assert during == pytest.approx(350.0, rel=0.05)
    after = sum(cost for when, cost in crowd.admitted if 9.0 <= when < 12.0)
    assert after == pytest.approx(300.0, rel=0.05)
    # Who is back first has the whole rate while the others, until their next probe, still run their parts.
    assert crowd.peak() <= crowd.burst + 0.75 * 100.0 * 1.45
    assert all(worker.leases.is_up for worker in crowd.workers)
