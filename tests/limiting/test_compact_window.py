"""The user window whose limits are large, alone and beside exact ones."""

from __future__ import annotations

import copy
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.bucket_window import BucketRing
from autoglm_throttle.types import EXACT_AT_MOST, UserLimit
from tests.limiting.reference_buckets import ReferenceWindow
from tests.limiting.windows import SlidingWindow, limit

USERS = ("ann", "ben")
BIG = EXACT_AT_MOST + 1


@st.composite
def limit_sets(draw: st.DrawFn) -> tuple[UserLimit, ...]:
    windows = draw(st.lists(st.sampled_from([1, 2, 5, 60]), min_size=1, max_size=4, unique=True))
    units = st.sampled_from([3, 900, EXACT_AT_MOST, BIG, 2000, 100_000])
    return tuple(limit(draw(units), window_s) for window_s in windows)


Step = tuple[float, str, int, float | None]
"""Seconds on, who, how many units, and seconds after which they are given back, if they are."""

steps = st.tuples(
    st.one_of(st.sampled_from([0.0, 1 / 64, 0.25, 1.0, 1.015625, 2.0, 5.0, 60.0, 61.0]), st.floats(0.0, 3.0)),
    st.sampled_from(USERS),
    st.sampled_from([1, 2, 3, 300, 450, 900, 1000, 1001, 2001, 50_000]),
    st.sampled_from([None, None, 0.0]),
)
traces = st.lists(steps, max_size=15)


@given(limits=limit_sets(), trace=traces)
def test_it_decides_as_the_naive_ones_do(limits: tuple[UserLimit, ...], trace: list[Step]) -> None:
    tested, reference, now = SlidingWindow(limits, 1000), ReferenceWindow(limits), 1000.0
    log: list[tuple[float, str, int]] = []
    for gap, user, units, back in trace:
        now += gap
        expected = reference.hit(user, units, now)
        decision = tested.hit(user, units, now)
        assert decision.allowed is expected.allowed
        assert decision.retry_after_s == pytest.approx(expected.retry_after_s, abs=1e-6)
        assert {state.name: state.remaining for state in decision.limits} == expected.remaining
        for state in decision.limits:
            if state.name in expected.reset_s:
                assert state.reset_s == pytest.approx(expected.reset_s[state.name], abs=1e-6)
        if decision.allowed and back is not None:
            assert tested.give_back(user, units, now, now)
            reference.give_back(user, units, now)
        elif decision.allowed:
            log.append((now, user, units))
    for each in limits:
        for first, whose, _ in log:
            inside = (n for at, user, n in log if user == whose and first <= at < first + each.window_s)
            assert sum(inside) <= each.limit


@given(
    limits=limit_sets(), trace=traces, probe=st.sampled_from([1, 3, 800, 1000]), share=st.floats(0.0, 0.999)
)
def test_rejected_before_retry_after_and_allowed_at_it(
    limits: tuple[UserLimit, ...], trace: list[Step], probe: int, share: float
) -> None:
    tested, now = SlidingWindow(limits, 1000), 1000.1
    for gap, _, units, _ in trace:
        now += gap
        tested.hit("ann", units, now)
    rejection = copy.deepcopy(tested).hit("ann", probe, now)
    there = now + rejection.retry_after_s
    if rejection.allowed or math.isinf(there):
        return
    for earlier in (now + rejection.retry_after_s * share, math.nextafter(there, 0.0)):
        assert earlier >= there or not copy.deepcopy(tested).hit("ann", probe, earlier).allowed
    assert tested.hit("ann", probe, there).allowed


def test_the_form_follows_the_limit() -> None:
    for units, ring in ((EXACT_AT_MOST, False), (BIG, True)):
        assert isinstance(SlidingWindow((limit(units, 60),), 1).peek("ann"), BucketRing) is ring


def test_limits_of_both_layouts_are_reported_in_order() -> None:
    tested = SlidingWindow((limit(5000, 3600), limit(10, 1), limit(2000, 60)), 10)
    decision = tested.hit("ann", 4, 100.0)
    assert [state.name for state in decision.limits] == ["user-1s", "user-3600s", "user-60s"]
    assert [state.remaining for state in decision.limits] == [6, 4996, 1996]
    rejection = tested.hit("ann", 7, 100.5)
    assert (rejection.policy, rejection.retry_after_s) == ("user-1s", 0.5)
    assert [state.remaining for state in rejection.limits] == [6, 4996, 1996], "nothing was taken of any"


def test_other_limits_are_reported_in_order() -> None:
    tested = SlidingWindow((limit(5000, 3600), limit(1000, 1), limit(2000, 60)), 10)
    assert tested.hit("ann", 900, 100.0).allowed
    decision = tested.hit("ann", 100, 102.0)
    assert [state.name for state in decision.limits] == ["user-60s", "user-3600s", "user-1s"]


def test_the_log_is_no_longer_than_the_exact_limits_need() -> None:
    tested, ring = SlidingWindow((limit(10, 1), limit(5000, 3600)), 10), BucketRing()
    for n in range(3000):
        assert tested.hit("ann", 1, n / 8).allowed
        log, ring = tested.peek("ann")
        assert len(log) <= 8
    assert sys.getsizeof(ring) + sys.getsizeof(ring.counts) <= 300


def test_units_that_only_the_ring_still_counts_are_given_back_to_it() -> None:
    tested = SlidingWindow((limit(10, 1), limit(5000, 3600)), 10)
    tested.hit("ann", 4, 100.0)
    assert tested.give_back("ann", 3, 100.0, 102.0), "they have left the log by themselves"
    assert [state.remaining for state in tested.hit("ann", 1, 102.0).limits] == [9, 4998]
    assert not tested.give_back("ann", 1, 100.0, 100.0 + 3661.0)


# --- the table ---


def test_a_user_is_forgotten_when_the_last_bucket_has_left() -> None:
    for limits in ((limit(BIG, 60),), (limit(2, 1), limit(BIG, 60)), (limit(2, 90), limit(BIG, 60))):
        tested, leaves = SlidingWindow(limits, 10), max(61.0, *[each.window_s for each in limits])
        assert tested.hit("ann", 1, 0.0).allowed
        tested.sweep(math.nextafter(leaves, 0.0), 1)
        assert "ann" in tested.accounts
        tested.sweep(leaves, 1)
        assert "ann" not in tested.accounts


def test_the_exhausted_stay_and_the_one_with_the_most_left_goes() -> None:
    for limits in ((limit(2000, 60),), (limit(1000, 10), limit(2000, 60))):
        tested = SlidingWindow(limits, 3)
        for at, spent in ((0.0, {"ann": 1000, "ben": 500, "cid": 900}), (11.0, {"ann": 1000, "ben": 1})):
            for user, units in spent.items():
                assert tested.hit(user, units, at).allowed
        assert tested.hit("dot", 1000, 12.0).allowed
        assert tested.hit("dot", 1000, 23.0).allowed
        assert set(tested.accounts) == {"ann", "cid", "dot"}
        assert tested.hit("eve", 1, 24.0).allowed
        assert set(tested.accounts) == {"ann", "eve", "dot"}


def test_user_beyond_the_table_shares_a_ring() -> None:
    limits = (limit(2000, 60),)
    tested = SlidingWindow(limits, 1, SlidingWindow(limits, 1))
    assert tested.hit("ann", 2000, 0.0).allowed
    assert tested.hit("ben", 1500, 1.0, "street").allowed
    assert not tested.hit("cid", 501, 1.0, "street").allowed
    assert tested.give_back("ben", 1500, 1.0, 2.0, "street")
    assert tested.hit("cid", 2000, 2.0, "street").allowed
    assert [tested.hit(name, 1500, 2.0, "square").allowed for name in ("dan", "eve")] == [True, False]
    assert tested.give_back("dan", 1500, 2.0, 3.0, "square")
