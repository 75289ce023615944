"""The schedule of the sampler, with time passed in."""

from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoglm_throttle.gpu.interval import Schedule

SECONDS = st.floats(0.0, 1e6)
INTERVALS = st.floats(0.2, 60.0)


class Plan(NamedTuple):
    """The next read."""

    due_s: float
    reopen: bool = False


def after(schedule: Schedule, outcome: str, started_s: float, now: float) -> Plan:
    """Return the plan after one read."""
    schedule.begin(started_s)
    getattr(schedule, outcome)(now)
    return Plan(schedule.due_s, schedule.reopens)


def test_first_read_is_due_at_once() -> None:
    assert Schedule(1.0).wait_s(0.0, 0.2) == 0.0


def test_next_read_is_one_interval_after_the_start() -> None:
    schedule = Schedule(1.0)
    assert after(schedule, "succeeded", 10.0, 10.3) == Plan(11.0)
    assert schedule.wait_s(10.5, 0.2) == 0.5


def test_a_read_of_exactly_one_interval_misses_nothing() -> None:
    assert after(Schedule(1.0), "succeeded", 10.0, 11.0).due_s == 11.0


def test_missed_ticks_are_skipped() -> None:
    schedule = Schedule(1.0)
    assert after(schedule, "succeeded", 10.0, 73.4).due_s == 74.0
    assert schedule.wait_s(73.5, 0.2) == 0.5


def test_three_retries_then_backoff_to_a_minute_with_reopens() -> None:
    schedule = Schedule(0.5)
    plan = [after(schedule, "failed", 0.0, 0.1) for _ in range(12)]
    assert plan[:3] == [Plan(0.5)] * 3
    assert [round(step.due_s - 0.1, 9) for step in plan[3:]] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(step.reopen for step in plan[3:])


def test_back_off_is_never_shorter_than_the_interval() -> None:
    schedule = Schedule(10.0)
    due = [after(schedule, "failed", 0.0, 0.0).due_s for _ in range(8)]
    assert due == [10, 10, 10, 10, 10, 10, 10, 16]


def test_a_success_ends_the_back_off() -> None:
    schedule = Schedule(1.0)
    for _ in range(9):
        after(schedule, "failed", 0.0, 0.0)
    assert after(schedule, "succeeded", 5.0, 5.0).due_s == 6.0
    assert after(schedule, "failed", 6.0, 6.0).due_s == 7.0


def test_missing_source_is_tried_once_a_minute_without_failure() -> None:
    schedule = Schedule(1.0)
    after(schedule, "failed", 0.0, 0.0)
    assert after(schedule, "no_source", 5.0, 5.0) == Plan(65.0)
    assert schedule.consecutive_failures == 0


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_intervals_are_rejected(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Schedule(interval_s)
    schedule = Schedule(1.0)
    with pytest.raises(ValueError, match="interval_s"):
        schedule.set_interval(interval_s)
    assert schedule.interval_s == 1.0


def test_a_faster_rhythm_counts_from_the_start_of_the_last_read() -> None:
    schedule = Schedule(10.0)
    after(schedule, "succeeded", 100.0, 100.5)
    schedule.set_interval(1.0)
    assert schedule.due_s == 101.0
    after(schedule, "succeeded", 101.0, 101.0)
    assert schedule.due_s == 102.0


def test_longer_interval_applies_after_the_planned_read() -> None:
    schedule = Schedule(1.0)
    after(schedule, "succeeded", 100.0, 100.5)
    schedule.set_interval(10.0)
    assert schedule.due_s == 101.0
    after(schedule, "succeeded", 101.0, 101.5)
    assert schedule.due_s == 111.0


def test_no_rhythm_cuts_a_pause_short() -> None:
    schedule = Schedule(10.0)
    for _ in range(8):
        after(schedule, "failed", 0.0, 0.0)
    due_s = schedule.due_s
    schedule.set_interval(0.5)
    assert schedule.due_s == due_s
    due_s = after(schedule, "no_source", 0.0, 0.0).due_s
    schedule.set_interval(0.2)
    assert schedule.due_s == due_s


def test_wake_respects_the_interval_of_the_provider() -> None:
    schedule = Schedule(10.0)
    after(schedule, "succeeded", 100.0, 100.0)
    schedule.wake()
    assert schedule.wait_s(100.0, 0.25) == 0.25
    assert schedule.wait_s(101.0, 0.25) == 0.0
    after(schedule, "succeeded", 101.0, 101.0)
    assert schedule.wait_s(101.0, 0.25) == 10.0, "one read answers it"


def test_wake_during_a_read_leads_to_another() -> None:
    schedule = Schedule(10.0)
    schedule.begin(100.0)
    schedule.wake()
    schedule.succeeded(100.5)
    assert schedule.wait_s(100.5, 0.25) == 0.0


def test_ended_schedule_is_never_due_until_reopened() -> None:
    schedule = Schedule(1.0)
    schedule.end()
    assert schedule.wait_s(1e9, 0.2) == float("inf")
    schedule.read_at_once()
    assert schedule.wait_s(0.0, 0.2) == 0.0


@example(0.94, 1.0, 524288.0, 1.0)
@given(INTERVALS, INTERVALS, SECONDS, st.floats(0.0, 1000.0))
def test_interval_change_keeps_read_within_bounds(
    before_s: float, after_s: float, started_s: float, took_s: float
) -> None:
    schedule = Schedule(before_s)
    planned = after(schedule, "succeeded", started_s, started_s + took_s)
    schedule.set_interval(after_s)
    assert schedule.due_s <= planned.due_s
    assert schedule.due_s >= started_s + min(before_s, after_s) - 1e-6


@given(INTERVALS, SECONDS, st.floats(0.0, 1000.0), st.lists(st.booleans(), max_size=80))
def test_next_read_is_between_now_and_a_minute(
    interval_s: float, started_s: float, took_s: float, outcomes: list[bool]
) -> None:
    schedule = Schedule(interval_s)
    now = started_s + took_s
    for good in outcomes:
        plan = after(schedule, "succeeded" if good else "failed", started_s, now)
        assert now - 1e-6 <= plan.due_s <= now + max(interval_s, 60.0) + 1e-6
        assert plan.due_s >= started_s + interval_s - 1e-6
        assert plan.reopen == (schedule.consecutive_failures > 3)
