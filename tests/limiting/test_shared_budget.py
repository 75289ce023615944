"""One budget for three classes: who stops first, until when, and what a change of rate leaves."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.token_bucket import SharedBudget
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.types import Priority, Reason

LEVELS = (0.0, 0.3, 0.6)


def budget(rate: float, now: float = 0.0) -> SharedBudget:
    made = SharedBudget(RateSettings(), now)
    made.rescale(rate, "utilization", now)
    return made


def drain(of: SharedBudget, priority: Priority, now: float = 0.0) -> int:
    """How many come in at this instant."""
    return sum(1 for _ in itertools.takewhile(lambda _: of.take(priority, now) is None, itertools.count()))


def tokens(of: SharedBudget, now: float) -> float:
    """What is stored, as a refused take of another class would tell it."""
    return of.bucket.tokens(now)


@pytest.mark.parametrize(
    ("rate", "capacity"), [(100.0, 50.0), (16.0, 8.0), (15.9, 8.0), (1.15, 8.0), (1600.0, 800.0)]
)
def test_it_holds_half_a_second_and_at_least_eight(rate: float, capacity: float) -> None:
    assert drain(budget(rate), Priority.HIGH) == capacity


def test_the_lower_classes_leave_their_reserve_behind() -> None:
    of = budget(100.0)
    assert drain(of, Priority.LOW) == 20
    assert drain(of, Priority.MID) == 15
    assert drain(of, Priority.HIGH) == 15


def test_even_a_very_small_rate_lets_every_class_pass() -> None:
    for priority in Priority:
        of = budget(1.15)
        drain(of, Priority.HIGH)
        assert of.take(priority, 8.0 / 1.15) is None


def test_inactive_budget_admits_all_and_spends_nothing() -> None:
    of = SharedBudget(RateSettings(), 0.0)
    assert [of.take(Priority.LOW, 0.0) for _ in range(1000)] == [None] * 1000
    of.rescale(100.0, "memory", 1.0)
    bucket = of.bucket
    assert (bucket.name, bucket.tokens(1.0), bucket.burst, bucket.rate) == ("gpu", 50.0, 50.0, 100.0)
    assert drain(of, Priority.HIGH, 1.0) == 50
    of.rescale(None, "memory", 1.0)
    assert of.take(Priority.LOW, 1.0) is None
    of.rescale(100.0, "memory", 1.0)
    assert drain(of, Priority.HIGH, 1.0) == 50, "after a rest it begins full"


def test_rejection_names_the_deciding_term() -> None:
    of = budget(100.0)
    of.rescale(100.0, "memory", 0.0)
    drain(of, Priority.LOW)
    rejection = of.take(Priority.LOW, 0.0)
    assert rejection is not None
    assert (rejection.allowed, rejection.reason, rejection.detail) == (False, Reason.GPU, "gpu:memory")
    assert (rejection.policy, rejection.limit, rejection.remaining) == ("gpu", 50.0, 30.0)
    assert rejection.retry_after_s == rejection.reset_after_s == pytest.approx((1 + 30 - 30) / 100)
    assert rejection.limits == ()


def test_what_is_given_back_is_there_again() -> None:
    of = budget(100.0)
    drain(of, Priority.HIGH)
    of.give_back(0.0)
    assert of.take(Priority.HIGH, 0.0) is None
    assert of.take(Priority.HIGH, 0.0) is not None


def test_a_rescale_counts_the_time_before_at_the_old_rate() -> None:
    of = budget(100.0)
    drain(of, Priority.HIGH)
    of.rescale(10.0, "utilization", 0.05)
    assert tokens(of, 0.05) == pytest.approx(5.0)
    assert tokens(of, 0.15) == pytest.approx(6.0)
    of.rescale(1000.0, "utilization", 0.15)
    assert tokens(of, 0.25) == pytest.approx(106.0)
    of.rescale(20.0, "utilization", 0.25)
    assert tokens(of, 0.25) == 10.0, "within the new capacity"


@given(
    rate=st.floats(0.5, 5000.0),
    spent=st.lists(st.sampled_from(Priority), max_size=60),
    priority=st.sampled_from(Priority),
    at=st.floats(0.0, 5.0),
    before=st.floats(0.0, 0.999),
)
def test_rejected_before_retry_after_and_admitted_at_it(
    rate: float, spent: list[Priority], priority: Priority, at: float, before: float
) -> None:
    of = budget(rate)
    for other in spent:
        of.take(other, at)
    drain(of, priority, at)
    rejection = of.take(priority, at)
    assert rejection is not None
    wait = rejection.retry_after_s
    capacity = max(0.5 * rate, 8.0)
    expected = (1.0 + LEVELS[priority] * capacity - rejection.remaining) / rate
    assert wait == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for earlier in (wait * before, wait - 1e-6):
        if 0.0 <= earlier < wait:
            assert copy.deepcopy(of).take(priority, at + earlier) is not None
    assert of.take(priority, at + wait) is None


verbs = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 200), st.sampled_from([0.0, 1.0, 2.0])),
    st.tuples(st.just("give_back"), st.integers(0, 200), st.just(0.0)),
    st.tuples(st.just("rescale"), st.integers(0, 200), st.sampled_from([0.5, 4.0, 32.0, 256.0])),
)


@given(calls=st.lists(verbs, max_size=60))
def test_any_order_of_calls_keeps_the_store_within_its_size_and_the_sum_within_the_rates(
    calls: list[tuple[str, int, float]],
) -> None:
    of, now, rate, taken = budget(32.0), 0.0, 32.0, 0
    allowed = held = 16.0
    for verb, gap, amount in calls:
        now += gap / 128
        allowed += gap / 128 * rate
        if verb == "take":
            before = tokens(of, now)
            passes = of.take(Priority(int(amount)), now) is None
            assert passes is (before >= 1.0 + LEVELS[int(amount)] * held)
            taken += passes
            assert tokens(of, now) == (before - 1.0 if passes else before), "a refused take changes nothing"
        elif verb == "give_back" and taken:
            of.give_back(now)
            taken -= 1
        elif verb == "rescale":
            of.rescale(amount, "utilization", now)
            rate, held = amount, max(0.5 * amount, 8.0)
        assert 0.0 <= tokens(of, now) <= held
        assert taken <= allowed + 1e-9


def test_below_the_rate_nothing_is_rejected() -> None:
    of = budget(115.0)
    for n in range(2000):
        assert of.take(Priority(n % 3), n / 110) is None


def test_over_the_rate_high_passes_before_the_rest() -> None:
    of, passed = budget(100.0), [0, 0, 0]
    for n in range(3000):
        for priority in Priority:
            passed[priority] += of.take(priority, n / 90) is None
    high, mid, low = (count / 3000 for count in passed)
    assert high == 1.0
    assert mid == pytest.approx(10 / 90, abs=0.02)
    assert low < 0.01
