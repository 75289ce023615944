"""The rhythm of the sampler, with time passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.schedule import Next, Schedule

SECONDS = st.floats(0.0, 1e6)
INTERVALS = st.floats(0.2, 60.0)


def test_next_read_is_one_interval_after_the_start() -> None:
    assert Schedule(1.0).succeeded(10.0, 10.3) == Next(11.0)


def test_a_read_of_exactly_one_interval_misses_nothing() -> None:
    assert Schedule(1.0).succeeded(10.0, 11.0) == Next(11.0)


def test_missed_ticks_are_skipped() -> None:
    assert Schedule(1.0).succeeded(10.0, 73.4) == Next(74.0)


def test_three_retries_then_back_off_to_a_minute_with_fresh_openings() -> None:
    schedule = Schedule(0.5)
    plan = [schedule.failed(0.0, 0.1) for _ in range(12)]
    assert plan[:3] == [Next(0.5)] * 3
    assert [round(step.due_s - 0.1, 9) for step in plan[3:]] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(step.fresh for step in plan[3:])


def test_back_off_is_never_shorter_than_the_interval() -> None:
    schedule = Schedule(10.0)
    assert [schedule.failed(0.0, 0.0).due_s for _ in range(8)] == [10, 10, 10, 10, 10, 10, 10, 16]


def test_a_success_ends_the_back_off() -> None:
    schedule = Schedule(1.0)
    for _ in range(9):
        schedule.failed(0.0, 0.0)
    assert schedule.succeeded(5.0, 5.0) == Next(6.0)
    assert schedule.failed(6.0, 6.0) == Next(7.0)


def test_nothing_there_is_looked_for_once_a_minute_and_is_no_strike() -> None:
    schedule = Schedule(1.0)
    schedule.failed(0.0, 0.0)
    assert schedule.absent(5.0) == Next(65.0)
    assert schedule.strikes == 0


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_intervals_are_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Schedule(interval_s)


@given(INTERVALS, SECONDS, st.floats(0.0, 1000.0), st.lists(st.booleans(), max_size=80))
def test_the_next_read_is_never_in_the_past_and_never_later_than_a_minute(
    interval_s: float, started_s: float, took_s: float, outcomes: list[bool]
) -> None:
    schedule = Schedule(interval_s)
    now = started_s + took_s
    for good in outcomes:
        plan = schedule.succeeded(started_s, now) if good else schedule.failed(started_s, now)
        assert now - 1e-6 <= plan.due_s <= now + max(interval_s, 60.0) + 1e-6
        assert plan.due_s >= started_s + interval_s - 1e-6
        assert plan.fresh == (schedule.strikes > 3)
