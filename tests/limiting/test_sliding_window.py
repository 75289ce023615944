"""The user window against a naive log, and at its boundaries."""

from __future__ import annotations

import copy
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting import log_window
from autoglm_throttle.types import Reason, UserLimit
from tests.limiting.reference_log import ReferenceLog
from tests.limiting.windows import limit, window

USERS = ("ann", "ben", "")
EDGE = 1e-9


@st.composite
def limit_sets(draw: st.DrawFn) -> tuple[UserLimit, ...]:
    windows = draw(st.lists(st.sampled_from([1, 2, 5, 60]), min_size=1, max_size=4, unique=True))
    return tuple(limit(draw(st.integers(1, 7)), window_s) for window_s in windows)


# Gaps that land on, just before and just after the end of some window.
gaps = st.one_of(
    st.sampled_from([0.0, EDGE, 0.25, 1.0 - EDGE, 1.0, 1.0 + EDGE, 2.0, 4.5, 5.0, 60.0, 200.0]),
    st.floats(0.0, 3.0),
)
steps_back = st.sampled_from([-EDGE, -0.4, -1.0, -7.0, -100.0])
traces = st.lists(st.tuples(gaps, st.sampled_from(USERS), st.integers(1, 8)), max_size=40)


@given(limits=limit_sets(), trace=traces)
def test_it_decides_as_the_naive_log_does(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]]
) -> None:
    tested, reference, now = window(*limits), ReferenceLog(limits), 1000.1
    for gap, user, units in trace:
        now += gap
        expected = reference.hit(user, units, now)
        decision = tested.hit(user, units, now)
        assert decision.allowed is expected.allowed
        assert decision.retry_after_s == pytest.approx(expected.retry_after_s, abs=1e-9)
        assert {state.name: state.remaining for state in decision.limits} == expected.remaining
        for state in decision.limits:
            if state.name in expected.reset_s:
                assert state.reset_s == pytest.approx(expected.reset_s[state.name], abs=1e-9)
    for user in USERS:
        for each in limits:
            assert reference.most_in_any_window(user, each.window_s) <= each.limit


@given(
    limits=limit_sets(),
    trace=st.lists(
        st.tuples(st.one_of(gaps, steps_back), st.sampled_from(USERS), st.integers(1, 4)), max_size=40
    ),
)
def test_a_clock_that_steps_back_frees_nothing_that_had_not_left_before(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]]
) -> None:
    tested, reference, now, latest = window(*limits), ReferenceLog(limits), 1000.1, 1000.1
    for gap, user, units in trace:
        now += gap
        latest = max(latest, now)
        by_the_clock, by_the_latest = (reference.look(user, units, at) for at in (now, latest))
        decision = tested.hit(user, units, now)
        assert by_the_clock.allowed <= decision.allowed <= by_the_latest.allowed
        if decision.allowed:
            reference.charge(user, units, now)


@given(limits=limit_sets(), trace=traces, probe=st.integers(1, 7), share=st.floats(0.0, 0.999))
def test_rejected_before_retry_after_and_allowed_at_it(
    limits: tuple[UserLimit, ...], trace: list[tuple[float, str, int]], probe: int, share: float
) -> None:
    tested, now = window(*limits), 1000.1
    for gap, _, units in trace:
        now += gap
        tested.hit("ann", units, now)
    rejection = copy.deepcopy(tested).hit("ann", probe, now)
    wait = rejection.retry_after_s
    if rejection.allowed or math.isinf(wait):
        return
    assert wait > 0.0
    for earlier in (now, now + wait * share, now + wait - 1e-6):
        assert not copy.deepcopy(tested).hit("ann", probe, min(earlier, now + wait - 1e-7)).allowed
    assert tested.hit("ann", probe, now + wait).allowed


@given(
    burst=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([-EDGE, 0.0, EDGE, 0.5])), max_size=25),
    units=st.integers(1, 4),
)
def test_no_window_ever_holds_more_than_the_limit_under_boundary_attacks(
    burst: list[tuple[int, float]], units: int
) -> None:
    tested, log = window(limit(4, 1)), []
    for instant in sorted(100.3 + boundary + offset for boundary, offset in burst):
        for _ in range(3):
            if tested.hit("mallory", units, instant).allowed:
                log += [instant] * units
    for first in log:
        assert sum(first <= spent < first + 1.0 for spent in log) <= 4


def test_the_limit_is_used_in_full() -> None:
    tested = window(limit(100, 60))
    assert sum(tested.hit("ann", 1, 10.0 + n * 0.1).allowed for n in range(200)) == 100
    assert not tested.hit("ann", 1, math.nextafter(70.0, 0.0)).allowed
    assert [tested.hit("ann", 1, 70.0).allowed for _ in range(2)] == [True, False]


def test_admission_carries_the_remaining_units() -> None:
    decision = window(limit(10, 60), limit(5, 1)).hit("ann", 2, 7.0)
    assert (decision.allowed, decision.reason, decision.detail) == (True, Reason.OK, "")
    assert (decision.policy, decision.limit, decision.remaining) == ("user-1s", 5, 3), "the fuller limit"
    assert (decision.reset_after_s, decision.retry_after_s) == (1.0, 0.0)
    assert {(state.name, state.remaining) for state in decision.limits} == {("user-60s", 8), ("user-1s", 3)}


def test_rejection_names_the_limit_with_the_longest_wait() -> None:
    tested = window(limit(2, 1), limit(2, 60))
    assert tested.hit("ann", 2, 100.0).allowed
    rejection = tested.hit("ann", 1, 100.25)
    assert (rejection.allowed, rejection.reason, rejection.detail) == (False, Reason.USER, "user:user-60s")
    assert (rejection.policy, rejection.limit, rejection.remaining) == ("user-60s", 2, 0)
    assert rejection.retry_after_s == rejection.reset_after_s == 59.75


def test_all_limits_or_none() -> None:
    tested = window(limit(1, 1), limit(3, 60))
    decisions = [tested.hit("ann", 1, 100.0 + n / 10) for n in range(10)]
    assert [decision.allowed for decision in decisions] == [True] + [False] * 9
    left = {state.name: state.remaining for state in tested.hit("ann", 1, 101.0).limits}
    assert left == {"user-1s": 0, "user-60s": 1}, "nine refusals by the short limit took nothing of the long"


def test_cost_above_the_limit_is_too_large_and_charges_nothing() -> None:
    tested = window(limit(100, 60), limit(5, 1))
    rejection = tested.hit("ann", 6, 0.0)
    assert (rejection.reason, rejection.detail) == (Reason.TOO_LARGE, "too_large:user-1s")
    assert (rejection.retry_after_s, rejection.limit, rejection.remaining) == (math.inf, 5, 5)
    assert len(tested) == 0
    assert tested.hit("ann", 5, 0.0).allowed
    assert tested.hit("ann", 6, 0.0).reason is Reason.TOO_LARGE, "a known user, too"


def test_a_clock_that_went_back_frees_nothing() -> None:
    tested = window(limit(2, 10))
    assert tested.hit("ann", 2, 100.0).allowed
    rejection = tested.hit("ann", 1, 50.0)
    assert not rejection.allowed
    assert rejection.retry_after_s == 60.0
    assert tested.hit("ann", 1, 110.0).allowed
    assert tested.hit("ann", 1, 40.0).allowed, "charged at 110, the last instant seen"
    assert not tested.hit("ann", 1, 115.0).allowed
    rejection = tested.hit("ann", 2, 115.0)
    assert rejection.retry_after_s == 5.0, "both at 110, so both leave at 120"
    assert tested.hit("ann", 2, 120.0).allowed


def test_empty_identities_share_one_window() -> None:
    tested = window(limit(2, 10))
    assert [tested.hit("", 1, 0.0).allowed for _ in range(3)] == [True, True, False]


@given(
    spent=st.lists(st.floats(0.0, 1e7), max_size=20).map(sorted),
    window_s=st.sampled_from([1, 3, 60, 3600]),
    pick=st.integers(0, 19),
    nudge=st.sampled_from([-1, 0, 1]),
)
def test_a_unit_leaves_at_exactly_its_instant_whatever_floats_do(
    spent: list[float], window_s: int, pick: int, nudge: int
) -> None:
    log = array("d", spent)
    now = log[pick % len(log)] + window_s if log else 5.0
    now = math.nextafter(now, math.inf * nudge) if nudge else now
    expected = sum(each + window_s <= now for each in log)
    assert log_window.first_live(log, window_s, now) == expected


def test_rounding_does_not_keep_a_unit_in_its_window() -> None:
    """The sum of instant and window is rounded down here, so the difference lies before the instant."""
    spent, window_s = 2.2014426429991936, 3600
    now = spent + window_s
    assert now - window_s < spent
    assert log_window.first_live(array("d", [spent, spent]), window_s, now) == 2


def test_rounding_does_not_let_a_unit_out_of_its_window() -> None:
    """A clock may count from anywhere: the difference is rounded up to the instant itself here."""
    spent, window_s, now = math.nextafter(-1.0, 0.0), 1, 9e-17
    assert now - window_s == spent
    assert spent + window_s > now
    assert log_window.first_live(array("d", [spent]), window_s, now) == 0


@pytest.mark.parametrize(("spent", "now", "window_s"), [(0.44, 0.79, 10), (0.55, 0.94, 5), (0.04, 0.52, 5)])
def test_a_wait_that_rounding_would_cut_short_is_lengthened(spent: float, now: float, window_s: int) -> None:
    tested = window(limit(1, window_s))
    assert tested.hit("ann", 1, spent).allowed
    leaves = spent + window_s
    assert now + (leaves - now) < leaves
    assert tested.hit("ann", 1, now + tested.hit("ann", 1, now).retry_after_s).allowed
