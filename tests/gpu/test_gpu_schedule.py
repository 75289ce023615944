"""The schedule of the sampler, with time passed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.schedule import NextRead, RestartPolicy, Schedule

SECONDS = st.floats(0.0, 1e6)
INTERVALS = st.floats(0.2, 60.0)


def test_next_read_is_one_interval_after_the_start() -> None:
    assert Schedule(1.0).succeeded(10.0, 10.3) == NextRead(11.0, from_s=10.0)


def test_a_read_of_exactly_one_interval_misses_nothing() -> None:
    assert Schedule(1.0).succeeded(10.0, 11.0).due_s == 11.0


def test_missed_ticks_are_skipped() -> None:
    assert Schedule(1.0).succeeded(10.0, 73.4).due_s == 74.0


def test_three_retries_then_backoff_to_a_minute_with_reopens() -> None:
    schedule = Schedule(0.5)
    plan = [schedule.failed(0.0, 0.1) for _ in range(12)]
    assert plan[:3] == [NextRead(0.5, from_s=0.0)] * 3
    assert [round(step.due_s - 0.1, 9) for step in plan[3:]] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(step.reopen for step in plan[3:])


def test_back_off_is_never_shorter_than_the_interval() -> None:
    schedule = Schedule(10.0)
    assert [schedule.failed(0.0, 0.0).due_s for _ in range(8)] == [10, 10, 10, 10, 10, 10, 10, 16]


def test_a_success_ends_the_back_off() -> None:
    schedule = Schedule(1.0)
    for _ in range(9):
        schedule.failed(0.0, 0.0)
    assert schedule.succeeded(5.0, 5.0).due_s == 6.0
    assert schedule.failed(6.0, 6.0).due_s == 7.0


def test_missing_source_is_tried_once_a_minute_without_failure() -> None:
    schedule = Schedule(1.0)
    schedule.failed(0.0, 0.0)
    assert schedule.no_source(5.0) == NextRead(65.0)
    assert schedule.consecutive_failures == 0


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_intervals_are_rejected(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Schedule(interval_s)
    schedule = Schedule(1.0)
    with pytest.raises(ValueError, match="interval_s"):
        schedule.set_interval(interval_s, NextRead(5.0))
    assert schedule.interval_s == 1.0


def test_a_faster_rhythm_counts_from_the_start_of_the_last_read() -> None:
    schedule = Schedule(10.0)
    planned = schedule.succeeded(100.0, 100.5)
    assert schedule.set_interval(1.0, planned).due_s == 101.0
    assert schedule.succeeded(101.0, 101.0).due_s == 102.0


def test_longer_interval_applies_after_the_planned_read() -> None:
    schedule = Schedule(1.0)
    planned = schedule.succeeded(100.0, 100.5)
    assert schedule.set_interval(10.0, planned).due_s == 101.0
    assert schedule.succeeded(101.0, 101.5).due_s == 111.0


def test_no_rhythm_cuts_a_pause_short() -> None:
    schedule = Schedule(10.0)
    for _ in range(8):
        backed_off = schedule.failed(0.0, 0.0)
    assert schedule.set_interval(0.5, backed_off) == backed_off
    absent = schedule.no_source(0.0)
    assert schedule.set_interval(0.2, absent) == absent


@given(INTERVALS, INTERVALS, SECONDS, st.floats(0.0, 1000.0))
def test_interval_change_keeps_read_within_bounds(
    before_s: float, after_s: float, started_s: float, took_s: float
) -> None:
    schedule = Schedule(before_s)
    planned = schedule.succeeded(started_s, started_s + took_s)
    paced = schedule.set_interval(after_s, planned)
    assert paced.due_s <= planned.due_s
    assert paced.due_s >= started_s + min(before_s, after_s) - 1e-6


def test_repeatedly_crashing_thread_waits_up_to_a_minute() -> None:
    revival = RestartPolicy()
    pauses = []
    now = 1000.0
    for _ in range(9):
        assert revival.due_s <= now, "nothing holds back what never crashed, or has waited"
        revival.record_start(now)
        pauses.append(revival.postpone(now))
        assert revival.due_s == now + pauses[-1]
        now = revival.due_s
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(("lived_s", "pause_s"), [(59.9, 4.0), (60.0, 1.0)])
def test_thread_that_ran_a_minute_restarts_after_a_second(lived_s: float, pause_s: float) -> None:
    revival = RestartPolicy()
    revival.record_start(0.0)
    revival.postpone(0.0)
    revival.postpone(1.0)
    revival.record_start(3.0)
    assert revival.postpone(3.0 + lived_s) == pause_s


@given(INTERVALS, SECONDS, st.floats(0.0, 1000.0), st.lists(st.booleans(), max_size=80))
def test_next_read_is_between_now_and_a_minute(
    interval_s: float, started_s: float, took_s: float, outcomes: list[bool]
) -> None:
    schedule = Schedule(interval_s)
    now = started_s + took_s
    for good in outcomes:
        plan = schedule.succeeded(started_s, now) if good else schedule.failed(started_s, now)
        assert now - 1e-6 <= plan.due_s <= now + max(interval_s, 60.0) + 1e-6
        assert plan.due_s >= started_s + interval_s - 1e-6
        assert plan.reopen == (schedule.consecutive_failures > 3)
