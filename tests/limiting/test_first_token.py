"""The prediction of the time to the first token, from what waits ahead."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.first_token import ENGINE_MARGIN, OBSERVATIONS_MIN, FirstTokenEstimator

WORK = st.floats(0.1, 1e4)
OBJECTIVES = st.floats(0.001, 100.0)


def observed(
    starts: int = 2 * OBSERVATIONS_MIN,
    firsts: int = OBSERVATIONS_MIN,
    *,
    every_s: float = 0.1,
    units: float = 1.0,
    engine_s: float = 0.2,
) -> FirstTokenEstimator:
    """An estimator that has seen waiting work start at even distances."""
    tested = FirstTokenEstimator()
    for number in range(starts + 1):
        tested.record_start(units, number * every_s, waiting=True)
    for _ in range(firsts):
        tested.record_first_token(engine_s)
    return tested


def test_rate_is_that_of_the_starts_while_something_waits() -> None:
    assert observed(every_s=0.1).rate == pytest.approx(10.0)
    assert observed(every_s=0.1, units=500.0).rate == pytest.approx(5000.0), "prompt tokens per second"


def test_rate_follows_a_change_within_seconds() -> None:
    tested = observed(every_s=0.1)
    for number in range(100):
        tested.record_start(1.0, 4.0 + (number + 1) * 0.2, waiting=True)
    assert tested.rate == pytest.approx(5.0, rel=0.05)


def test_time_in_which_nothing_waits_does_not_lower_the_rate() -> None:
    tested = observed(every_s=0.1)
    tested.record_start(1.0, 4.1, waiting=False)
    tested.record_start(1.0, 900.0, waiting=False)
    tested.record_start(1.0, 901.0, waiting=True)
    for number in range(20):
        tested.record_start(1.0, 901.0 + 0.1 * (number + 1), waiting=True)
    assert tested.rate == pytest.approx(10.0)


def test_clock_that_goes_back_is_ignored() -> None:
    tested = observed()
    rate = tested.rate
    tested.record_start(1.0, -5.0, waiting=True)
    assert tested.rate == rate


def test_engine_time_is_a_mean_of_the_newest_first_tokens() -> None:
    tested = observed(firsts=0)
    for seconds in (0.1, 0.3):
        tested.record_first_token(seconds)
    assert tested.engine_s == pytest.approx(0.2)
    tested.record_first_token(-1.0)
    assert tested.engine_s == pytest.approx(0.4 / 3), "no negative time"


def test_lateness_is_the_wait_and_the_time_in_the_engine_beyond_the_objective() -> None:
    tested = observed(every_s=0.1, engine_s=0.2)
    assert tested.longest_wait_s(1.0) == pytest.approx(1.0 - ENGINE_MARGIN * 0.2)
    assert tested.late_s(30.0, 1.0) == pytest.approx(3.0 + ENGINE_MARGIN * 0.2 - 1.0)
    assert tested.late_s(30.0, 1.0, 0.5) == pytest.approx(6.0 + ENGINE_MARGIN * 0.2 - 1.0)
    assert tested.late_s(1.0, 1.0) == 0.0
    assert tested.late_s(1.0, 1.0, 0.0) == math.inf, "others take the whole rate"


def test_request_is_in_time_after_the_told_seconds_and_not_before() -> None:
    tested = observed(every_s=0.1, engine_s=0.2)
    late_s = tested.late_s(30.0, 1.0)
    assert tested.rate
    assert tested.late_s(30.0 - tested.rate * late_s * 1.001, 1.0) == 0.0
    assert tested.late_s(30.0 - tested.rate * late_s * 0.999, 1.0) > 0.0


@given(ahead=WORK, objective_s=OBJECTIVES, starts=st.integers(0, 60), firsts=st.integers(0, 60))
def test_nothing_is_late_before_twenty_observations(
    ahead: float, objective_s: float, starts: int, firsts: int
) -> None:
    tested = observed(starts, firsts)
    if min(starts, firsts) < OBSERVATIONS_MIN:
        assert tested.late_s(ahead, objective_s, 0.0) == 0.0


@given(objective_s=OBJECTIVES, engine_s=st.floats(0.0, 100.0), share=st.floats(0.0, 1.0))
def test_nothing_is_late_while_nothing_waits(objective_s: float, engine_s: float, share: float) -> None:
    assert observed(engine_s=engine_s).late_s(0.0, objective_s, share) == 0.0


@given(few=WORK, more=WORK, objective_s=OBJECTIVES, share=st.floats(0.0, 1.0))
def test_lateness_grows_with_the_work_ahead(
    few: float, more: float, objective_s: float, share: float
) -> None:
    few, more = sorted((few, more))
    tested = observed()
    assert tested.late_s(few, objective_s, share) <= tested.late_s(more, objective_s, share)
