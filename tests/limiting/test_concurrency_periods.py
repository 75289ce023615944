"""What the gate learns of its service in a period, and when a period ends."""

from __future__ import annotations

import pytest

from autoglm_throttle.types import Demand, Outcome
from tests.limiting.measured_limiters import (
    HIGH,
    LOW,
    MID,
    end,
    fill,
    knowing,
    limiter,
    rejected,
    wait,
)


def test_a_period_ends_after_half_a_second_at_the_usual_objective() -> None:
    tested = limiter()
    for _ in range(10):
        tested.try_acquire(Demand(MID), 0.1)
    tested.close_period(0.499)
    assert tested.view(0.499).demand_rps == (0.0, 0.0, 0.0)
    tested.close_period(0.5)
    assert tested.view(0.5).demand_rps == pytest.approx((0.0, 8.0, 0.0))


def test_rejections_before_the_limiter_are_demand() -> None:
    tested = limiter()
    for _ in range(10):
        tested.record_arrival(LOW, 0.1)
    assert tested.view(0.5).demand_rps == pytest.approx((0.0, 0.0, 8.0))
    assert tested.in_flight == 0


def test_period_completions_are_a_setting() -> None:
    tested = limiter(slo_s=60.0, period_completions=2)
    for done in (1, 2):
        tested.try_acquire(Demand(HIGH), 0.0)
        tested.release(0.0, Outcome.SUCCESS, 0.1)
        tested.close_period(0.5)
        assert (tested.service.demand_rps[0] > 0.0) is (done == 2)


@pytest.mark.parametrize(
    ("done", "latency_s", "now", "closed"),
    [
        (8, 0.05, 0.499, False),  # never before a period's least length
        (8, 0.05, 0.5, True),
        (7, 0.05, 0.5, False),  # too few have finished
        (7, 0.05, 14.9, False),
        (7, 0.05, 15.0, True),  # a quarter of the objective
        (0, 0.05, 15.0, True),
        (8, 4.0, 3.9, False),  # shorter than one answer
        (8, 4.0, 4.0, True),
        (8, 99.0, 14.9, False),
        (8, 99.0, 15.0, True),
    ],
)
def test_with_a_long_objective_a_period_needs_completions_and_the_time_of_an_answer(
    done: int, latency_s: float, now: float, closed: bool
) -> None:
    tested = limiter(slo_s=60.0)
    tested.service.latency_s = latency_s
    tested.close_period(15.0)  # the next one knows the latency
    for _ in range(8):
        tested.try_acquire(Demand(HIGH), 15.0)
    for _ in range(done):
        tested.release(15.0, Outcome.SUCCESS, 15.3)
    tested.close_period(15.0 + now)
    assert (tested.service.demand_rps[0] > 0.0) is closed


def test_time_in_flight_is_summed_at_each_change() -> None:
    tested = limiter()
    tested.try_acquire(Demand(HIGH), 0.1)
    tested.try_acquire(Demand(HIGH), 0.2)
    tested.release(0.1, Outcome.SUCCESS, 0.3)
    tested.close_period(0.5)  # 0.2 + 0.3 request seconds in 0.5 s: one in flight; 1 / 0.2 s
    assert tested.view(0.5).service_rps == pytest.approx(2.0), "1 done in 0.5 s"
    tested.release(0.2, Outcome.SUCCESS, 0.9)
    tested.close_period(1.0)  # 0.4 s in flight of 0.5; its answer took 0.7 s
    assert tested.view(1.0).service_rps == pytest.approx(2.0)
    assert tested.period.starts_s == pytest.approx(0.0)


def test_a_long_answer_that_ends_in_a_short_period_is_no_rate() -> None:
    tested = limiter()
    tested.try_acquire(Demand(HIGH), 0.0)
    for tick in range(1, 20):
        tested.close_period(tick / 2)
    tested.release(0.0, Outcome.SUCCESS, 9.9)
    assert tested.view(10.0).service_rps == pytest.approx(0.4 / 0.5 / 9.9)


def test_what_was_found_in_one_period_does_not_count_for_the_next() -> None:
    tested = limiter(inflight_start=10, min_share=0.0)
    fill(tested)
    for _ in range(10):
        tested.release(0.0, Outcome.SUCCESS, 0.1)
    assert tested.try_acquire(Demand(HIGH), 0.2)
    tested.close_period(0.5)
    assert tested.period.peak == 1, "one is still inside"
    fill(tested, 0.6)
    rejected(tested, HIGH, 0.6, slo_s=0.01)
    tested.close_period(1.0)
    assert not tested.period.limited
    tested.service.measured = False
    tested.release(0.6, Outcome.SUCCESS, 1.1)
    tested.close_period(1.5)
    assert not tested.service.measured


def test_peak_in_flight_decides_whether_latency_is_unloaded() -> None:
    slow, loaded = limiter(), limiter()
    for tested, number in ((slow, 2), (loaded, 3)):
        tested.service.unloaded_s = tested.service.slow_latency_s = 0.1
        tested.service.periods = 50
        for _ in range(number):
            tested.try_acquire(Demand(HIGH), 0.0)
        for _ in range(number):
            tested.release(0.0, Outcome.SUCCESS, 0.4)
        tested.close_period(0.5)
    assert slow.view(0.5).unloaded_s == pytest.approx(0.19)
    assert loaded.view(0.5).unloaded_s == pytest.approx(0.1)


@pytest.mark.parametrize("by", ["line_up", "rescue", "charge"])
def test_every_way_in_counts_for_the_peak(by: str) -> None:
    tested = knowing(100.0, min_share=0.2, limit=1)
    if by == "line_up":
        fill(tested)
        wait(tested, HIGH)
        tested.period.peak = 0
        end(tested, 0.0)
    elif by == "rescue":
        assert tested.enqueue_reserved(Demand(LOW), 1.0) is not None
    else:
        tested.occupy_over_limit(HIGH)
    assert tested.period.peak == 1


@pytest.mark.parametrize(
    ("outcome", "lasted_s", "counts"),
    [
        (Outcome.SUCCESS, 0.001, True),
        (Outcome.FAILURE, 0.049, False),
        (Outcome.FAILURE, 0.051, True),
        (Outcome.NEUTRAL, 0.5, False),
    ],
)
def test_only_success_and_failure_count_as_completions(
    outcome: Outcome, lasted_s: float, counts: bool
) -> None:
    tested = limiter()
    tested.service.unloaded_s = 0.1
    tested.close_period(0.5)  # the next one knows the latency
    tested.try_acquire(Demand(HIGH), 0.5)
    tested.release(0.5, outcome, 0.5 + lasted_s)
    assert tested.period.done == counts
    assert tested.period.total_s == pytest.approx(lasted_s if counts else 0.0)
    assert tested.in_flight == 0


def test_while_nothing_is_known_failures_are_no_evidence() -> None:
    tested = limiter()
    tested.try_acquire(Demand(HIGH), 0.0)
    tested.release(0.0, Outcome.FAILURE, 0.4)
    assert tested.view(0.5).unloaded_s is None


def test_half_of_an_unloaded_answer_is_learnt_with_it() -> None:
    tested = limiter()
    tested.try_acquire(Demand(HIGH), 0.0)
    tested.release(0.0, Outcome.SUCCESS, 0.2)
    tested.close_period(0.5)
    for started_s, ended_s in ((0.5, 0.599), (0.6, 0.701)):
        tested.try_acquire(Demand(HIGH), started_s)
        tested.release(started_s, Outcome.FAILURE, ended_s)
    assert tested.period.done == 1


def test_a_clock_that_goes_back_stands_still() -> None:
    tested = limiter(inflight_start=1, inflight_floor=1)
    tested.try_acquire(Demand(HIGH), 5.0)
    ticket = wait(tested, HIGH, 3.0)
    assert ticket.arrived_s == 5.0
    tested.release(5.0, Outcome.SUCCESS, 4.0)
    assert tested.period.total_s == 0.0
    (called,) = tested.pop_ready(1.0)
    assert called.called_s == 5.0
    tested.cancel(called, 2.0)
    tested.close_period(0.0)
    assert tested.period.starts_s == pytest.approx(0.0)
    assert tested.view(0.0).limit == 1.0
