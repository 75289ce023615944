"""Who may fill how much of the memory, and what those who come in are told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import COMPUTE_PRIORITIES, MAX_WAIT_S, Quota
from autoglm_throttle.types import Demand, GpuCondition, GpuVerdict, Priority, Reason
from tests.control.quotas import GB, HIGH, LOW, MID, card, new_quota, route, seen

CAPS = {HIGH: 0.92, MID: 0.70, LOW: 0.50}
LABELS = ("fp16", "bf16", "int8")


def quota(**settings: Any) -> Quota:
    """One that knows an empty device."""
    made = new_quota(**settings)
    made.learn(seen(card(0.0, 0.0)), 0.0)
    return made


def filled(used_gb: float, held: int = 1, **settings: Any) -> Quota:
    """The same a second later, with so many requests in flight."""
    made = quota(**settings)
    for _ in range(held):
        made.reserve(Demand())
    made.load.peak = held
    made.learn(seen(card(used_gb, 1.0)), 1.0)
    return made


def priced(share: float, held: int = 2, **settings: Any) -> Quota:
    """A quota that has learned what one request takes, with some of them in flight."""
    made = quota(**settings)
    for _ in range(held):
        made.reserve(Demand())
    made.learn(seen(card(held * share * 100, 1.0)), 1.0)
    return made


@pytest.mark.parametrize("priority", Priority)
def test_each_class_has_its_cap(priority: Priority) -> None:
    cap = CAPS[priority]
    under = filled(100 * cap - 1, held=100)
    assert under.rejection(Demand(priority, cost=1e-6), 1.0) is None
    refusal = filled(100 * cap + 1, held=100).rejection(Demand(priority), 1.0)
    assert refusal is not None
    assert (refusal.reason, refusal.detail, refusal.policy) == (Reason.GPU, "gpu:memory", "memory")
    assert (refusal.limit, refusal.remaining) == (cap, 0.0)
    assert refusal.retry_after_s > 0.0


def test_the_next_request_counts_before_the_next_sample() -> None:
    made = priced(0.09)
    admitted = 0
    for _ in range(20):
        if made.rejection(Demand(), 1.0) is None:
            made.reserve(Demand())
            admitted += 1
    assert admitted == 5
    assert made.view(1.0).fill == pytest.approx(0.63)


def test_expensive_request_is_rejected_and_a_cheaper_admitted() -> None:
    made = priced(0.09)
    assert made.rejection(Demand(cost=6.0), 1.0) is not None
    assert made.rejection(Demand(cost=5.0), 1.0) is None


def test_a_class_is_let_in_again_well_below_its_cap() -> None:
    made = filled(72.0, held=100)
    assert made.rejection(Demand(), 1.0) is not None
    assert made.view(1.0).rejecting == {HIGH: False, MID: True, LOW: False}
    for at_s, used_gb, rejected in ((2.0, 66.0, True), (3.0, 64.0, False), (4.0, 66.0, False)):
        made.learn(seen(card(used_gb, at_s)), at_s)
        assert (made.rejection(Demand(cost=1e-6), at_s) is not None) is rejected, used_gb
        assert made.view(at_s).rejecting[MID] is rejected


def test_first_request_is_admitted_above_a_learned_cost() -> None:
    made = priced(0.6, held=1)
    for demand in (Demand(LOW), Demand(HIGH)):
        assert made.rejection(demand, 1.0) is not None
    made.load.remove(Demand())
    assert made.view(1.0).fill == pytest.approx(0.0)
    assert made.rejection(Demand(LOW), 1.0) is None


def test_unknown_memory_rejects_nothing_and_is_reported() -> None:
    made = filled(99.0, held=100)
    for blind in (new_quota(), made):
        assert blind.rejection(Demand(LOW), 5.0) is None
        assert blind.rejection(Demand(LOW, memory_bytes=10**15), 5.0) is None
        view = blind.view(5.0)
        assert (view.basis, view.fill) == (FillBasis.UNKNOWN, None)
        assert not any(view.rejecting.values())


def test_what_is_not_in_flight_is_not_looked_at() -> None:
    made = filled(99.0, held=100)
    assert made.rejection(Demand(LOW, holds_slot=False), 1.0) is None


class TestStated:
    """A demand that says how much memory it needs."""

    def test_it_is_held_to_what_the_cap_leaves(self) -> None:
        made = filled(40.0)
        assert made.rejection(Demand(memory_bytes=30 * GB), 1.0) is None
        assert made.rejection(Demand(memory_bytes=31 * GB), 1.0) is not None
        assert made.rejection(Demand(HIGH, memory_bytes=31 * GB), 1.0) is None

    def test_what_came_in_counts_at_once(self) -> None:
        made = filled(40.0)
        made.reserve(Demand(memory_bytes=20 * GB))
        assert made.rejection(Demand(memory_bytes=11 * GB), 1.0) is not None
        assert made.rejection(Demand(memory_bytes=9 * GB), 1.0) is None

    def test_more_than_the_whole_cap_can_never_fit(self) -> None:
        refusal = quota().rejection(Demand(memory_bytes=71 * GB), 0.0)
        assert refusal is not None
        assert (refusal.reason, refusal.detail) == (Reason.TOO_LARGE, "too_large:memory")
        assert refusal.limit == 70 * GB
        assert math.isinf(refusal.retry_after_s)

    def test_engine_reports_no_bytes(self) -> None:
        made = new_quota()
        made.reserve(Demand())
        made.learn(seen(kv=0.69, at_s=1.0), 1.0)
        assert made.rejection(Demand(memory_bytes=10**15), 1.0) is None
        made.learn(seen(kv=0.71, at_s=2.0), 2.0)
        assert made.rejection(Demand(memory_bytes=1), 2.0) is not None


ROUTES = (
    route("batch", gpu_memory_ratio=0.3, compute_priority=LOW),
    route("chat", precision_hint="fp8"),
    route("all", gpu_memory_ratio=1.0),
)


class TestRoutes:
    """A route may have a cap, labels and a class of its own."""

    def test_the_cap_of_a_route_is_that_of_all_its_requests(self) -> None:
        made = filled(35.0, held=100, precisions=LABELS, routes=ROUTES)
        for priority in Priority:
            assert made.rejection(Demand(priority, route="batch"), 1.0) is not None
            assert made.rejection(Demand(priority, route="chat", cost=1e-6), 1.0) is None
            assert made.rejection(Demand(priority, route="other", cost=1e-6), 1.0) is None
        assert not any(made.view(1.0).rejecting.values())

    def test_none_passes_the_guard_against_running_out(self) -> None:
        refusal = filled(93.0, held=100, precisions=LABELS, routes=ROUTES).rejection(
            Demand(LOW, route="all"), 1.0
        )
        assert refusal is not None
        assert refusal.limit == 0.92

    def test_it_has_labels_and_a_class_of_its_own(self) -> None:
        made = quota(precisions=LABELS, routes=ROUTES)
        assert made.advice(Demand(HIGH, route="batch"), 0.0).compute_priority == 9
        assert made.advice(Demand(HIGH, route="batch"), 0.0).precision == "fp16"
        assert made.advice(Demand(HIGH, route="chat"), 0.0).precision == "fp8"


def waiting(ends: int, held: int = 7, **measured: Any) -> float:
    """The wait told at the cap, a quarter of a second before the next sample."""
    made = priced(0.1, held=7)
    for _ in range(ends):
        made.load.remove(Demand())
        made.reserve(Demand())
    made.learn(seen(card(70.0, 2.0, **measured)), 2.0)
    for _ in range(7 - held):
        made.load.remove(Demand())
    refusal = made.rejection(Demand(cost=8.0), 2.75)
    assert refusal is not None
    assert refusal.reset_after_s == refusal.retry_after_s
    return refusal.retry_after_s


def test_retry_after_is_at_least_one_interval() -> None:
    assert waiting(ends=0) == 1.0
    assert waiting(ends=1000) == 1.0
    assert waiting(ends=1000, period_s=10.0) == 10.0


def test_the_wait_follows_how_fast_requests_end() -> None:
    assert waiting(ends=1) == pytest.approx(0.8 / (0.1 * 0.2)), "until there is room for as dear a one"
    made = priced(0.1, held=7)
    demand = Demand(memory_bytes=GB)
    made.reserve(demand)
    made.load.remove(demand)
    made.learn(seen(card(72.0, 2.0)), 2.0)
    refusal = made.rejection(Demand(), 2.0)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(1.0 / 0.2), "until one ends, whatever it frees"


def test_with_nothing_in_flight_here_no_end_is_waited_for() -> None:
    made = quota()
    made.reserve(Demand())
    for at_s in (1.0, 2.0):
        made.learn(seen(card(0.0, at_s)), at_s)
    made.load.remove(Demand())
    made.learn(seen(card(90.0, 3.0)), 3.0)
    assert made.memory.end_rates[1] == pytest.approx(0.2)
    refusal = made.rejection(Demand(), 3.0)
    assert refusal is not None
    assert refusal.retry_after_s == 1.0


def test_the_wait_is_finite_however_rarely_requests_end() -> None:
    made = priced(0.1, held=7)
    made.load.remove(Demand())
    made.reserve(Demand())
    for second in range(2, 4000):
        made.learn(seen(card(70.0, float(second))), float(second))
    refusal = made.rejection(Demand(), 3999.0)
    assert refusal is not None
    assert refusal.retry_after_s == MAX_WAIT_S


def test_a_small_cap_opens_again_at_its_half() -> None:
    made = filled(5.0, held=100, routes=[route("batch", gpu_memory_ratio=0.04)])
    for used_gb, at_s, rejected in ((5.0, 1.0, True), (3.0, 2.0, True), (1.9, 3.0, False), (3.0, 4.0, False)):
        made.learn(seen(card(used_gb, at_s)), at_s)
        refusal = made.rejection(Demand(route="batch", cost=1e-6), at_s)
        assert (refusal is not None) is rejected, used_gb


FIRST_OR_LAST = {
    (1.0, 10.0, False): "first first first",
    (1.0, 70.0, False): "first first first",
    (1.0, 71.0, False): "first first last",
    (0.7, 10.0, False): "first first last",
    (0.41, 71.0, False): "first first last",
    (0.4, 10.0, False): "first last last",
    (0.0, 99.0, False): "first last last",
    (1.0, 10.0, True): "first last last",
}


@pytest.mark.parametrize(("state", "words"), FIRST_OR_LAST.items(), ids=str)
def test_the_table_of_precisions(state: tuple[float, float, bool], words: str) -> None:
    factor, used_gb, degraded = state
    made = quota(precisions=LABELS)
    made.reserve(Demand())
    verdict = GpuVerdict(GpuCondition.DEGRADED if degraded else GpuCondition.THROTTLED, 0.0, 1.0)
    made.learn(seen(card(used_gb, 1.0), verdicts={("", "GPU-0"): verdict}), 1.0)
    made.factor = factor
    expected = ["fp16" if word == "first" else "int8" for word in words.split()]
    assert [made.advice(Demand(p), 1.0).precision for p in Priority] == expected


@pytest.mark.parametrize(
    ("stated", "calm", "loaded"),
    [
        ("", "fp16", "int8"),
        ("fp16", "fp16", "int8"),
        ("bf16", "bf16", "int8"),
        ("int8", "int8", "int8"),
        ("fp64", "fp16", "int8"),
    ],
)
def test_a_client_may_only_lower_it(stated: str, calm: str, loaded: str) -> None:
    made = quota(precisions=LABELS)
    assert made.advice(Demand(LOW, precision=stated), 0.0).precision == calm
    made.factor = 0.7
    assert made.advice(Demand(LOW, precision=stated), 0.0).precision == loaded


def test_without_labels_there_is_none() -> None:
    assert quota().advice(Demand(precision="int8"), 0.0).precision == ""


def test_the_class_that_is_passed_on() -> None:
    assert [quota().advice(Demand(p), 0.0).compute_priority for p in Priority] == [0, 5, 9]
    fixed = quota(compute_priority=LOW)
    assert [fixed.advice(Demand(p), 0.0).compute_priority for p in Priority] == [9, 9, 9]
    assert COMPUTE_PRIORITIES == (0, 5, 9)


def test_capacity_below_the_cap_is_reported_in_bytes() -> None:
    made = filled(40.0)
    left = [made.advice(Demand(p), 1.0).memory_bytes for p in Priority]
    assert left == pytest.approx([52 * GB, 30 * GB, 10 * GB], abs=2)
    assert filled(60.0).advice(Demand(LOW), 1.0).memory_bytes == 0
    assert made.advice(Demand(), 9.0).memory_bytes is None
    engine = new_quota()
    engine.learn(seen(kv=0.1, at_s=1.0), 1.0)
    assert engine.advice(Demand(), 1.0).memory_bytes is None


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from(Priority),
            st.sampled_from([0.5, 1.0, 4.0]),
            st.none() | st.integers(1, 90 * GB),
        ),
        st.tuples(st.just("end"), st.integers(0, 50)),
        st.tuples(st.just("sample"), st.floats(0, 100)),
        st.tuples(st.just("cache"), st.floats(0, 1)),
        st.tuples(st.just("stay")),
        st.tuples(st.just("silence")),
    ),
    max_size=60,
)


class Crowd:
    """Requests that ask, come in and end, and what a quota must not do with any of them."""

    def __init__(self) -> None:
        self.quota = quota()
        self.now = 0.0
        self.used_gb = 0.0
        self.inside: list[Demand] = []

    def fill(self) -> float | None:
        return self.quota.view(self.now).fill

    def needs_no_room(self, memory_bytes: int | None) -> bool:
        """The first in flight: what it is learned to add is not held against it, nor what stays by itself."""
        return not self.inside and (memory_bytes is None or self.quota.view(self.now).basis is FillBasis.KEPT)

    def ask(self, priority: Priority, cost: float, memory_bytes: int | None) -> None:
        demand = Demand(priority, cost=cost, memory_bytes=memory_bytes)
        before = self.fill()
        refusal = self.quota.rejection(demand, self.now)
        if refusal is None:
            first = self.needs_no_room(memory_bytes)
            caps = self.quota.view(self.now).caps
            self.quota.reserve(demand)
            self.inside.append(demand)
            after = self.fill()
            assert after is None or (before if first else after) <= caps[priority] + 1e-9  # type: ignore[operator]
            assert caps[priority] <= CAPS[priority]
            assert caps[priority] > 0.0 or len(self.inside) == 1
        else:
            assert before is not None, "unknown memory refuses nobody"
            assert refusal.remaining >= 0.0
            assert (refusal.retry_after_s < math.inf) is (refusal.reason is Reason.GPU)
            assert refusal.retry_after_s > 0.0

    def end(self, which: int) -> None:
        if self.inside:
            self.quota.load.remove(self.inside.pop(which % len(self.inside)))

    def stay(self) -> None:
        self.sample(self.used_gb)

    def sample(self, used_gb: float) -> None:
        self.now += 1.0
        self.used_gb = used_gb
        self.quota.learn(seen(card(used_gb, self.now)), self.now)

    def cache(self, kv: float) -> None:
        self.now += 1.0
        self.quota.learn(seen(kv=kv, at_s=self.now), self.now)

    def silence(self) -> None:
        self.now += 4.0


@given(STEPS)
def test_projection_of_a_request_admits_none_past_the_cap(steps: list[tuple[Any, ...]]) -> None:
    """But for the first one in flight, whose learned price is not held against it; unknown memory admits."""
    crowd = Crowd()
    for verb, *values in steps:
        getattr(crowd, verb)(*values)
        assert crowd.quota.view(crowd.now).slope >= 0.0
        assert crowd.quota.load.in_flight == len(crowd.inside)
