"""What the gate learns of its service in a period, and when a period ends."""

from __future__ import annotations

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.limiting.work_class import QUIET
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Outcome
from tests.limiting.measured_limiters import (
    HIGH,
    LOW,
    MID,
    end,
    fill,
    knowing,
    limiter,
    over,
    rejected,
    release,
    reserve,
    start,
    wait,
)


def test_a_period_ends_after_half_a_second_at_the_usual_objective() -> None:
    tested = limiter()
    for _ in range(10):
        start(tested, MID, 0.1)
    for _ in range(2):
        release(tested, 0.1, Outcome.SUCCESS, 0.2)
    tested.close_period(0.44)
    assert tested.view(0.44).demand_rps == (0.0, 0.0, 0.0)
    tested.close_period(0.5)
    assert tested.view(0.5).demand_rps == pytest.approx((0.0, 8.0, 0.0))


def test_rejections_before_the_limiter_are_demand() -> None:
    tested = limiter()
    for _ in range(10):
        tested.record_arrival(LOW, 0.1)
    assert tested.view(2.0).demand_rps == pytest.approx((0.0, 0.0, 2.0)), "without answers, after 2 s"
    assert tested.in_flight == 0


def test_period_completions_are_a_setting() -> None:
    tested = limiter(slo_s=60.0, period_completions=4)
    for done in (1, 2, 3, 4):
        start(tested, HIGH, 0.0)
        release(tested, 0.0, Outcome.SUCCESS, 0.1)
        tested.close_period(0.5 + done / 10)
        assert (tested.service.demand_rps[0] > 0.0) is (done == 4)


@pytest.mark.parametrize(
    ("done", "latency_s", "now", "closed"),
    [
        (8, 0.05, 0.499, False),  # never before a period's least length
        (8, 0.05, 0.5, True),
        (7, 0.05, 0.5, False),  # too few have finished
        (7, 0.05, 14.9, False),
        (7, 0.05, 15.0, True),  # a quarter of the objective
        (2, 0.05, 15.0, True),
        (1, 0.05, 59.0, False),  # one answer proves little
        (1, 0.05, 60.0, True),
        (0, 0.05, 59.0, False),
        (0, 0.05, 60.0, True),  # without answers four times as long
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
    for _ in range(8):
        start(tested, HIGH, 0.0)
    for _ in range(done):
        release(tested, 0.0, Outcome.SUCCESS, 0.02)
    tested.close_period(now)
    assert (tested.service.demand_rps[0] > 0.0) is closed


def test_time_in_flight_is_summed_at_each_change() -> None:
    tested = limiter()
    start(tested, HIGH, 0.1)
    start(tested, HIGH, 0.2)
    release(tested, 0.1, Outcome.SUCCESS, 0.3)
    assert tested.in_flight * 0.5 - tested.period.starts_s == pytest.approx(0.2 + 0.3)
    tested.close_period(2.0)  # 0.2 + 1.8 request seconds in 2 s: one in flight; 1 / 0.2 s
    assert tested.view(2.0).service_rps == pytest.approx(0.5), "1 done in 2 s"
    release(tested, 0.2, Outcome.SUCCESS, 2.4)
    tested.close_period(4.0)
    assert tested.period.starts_s == pytest.approx(0.0)


def test_a_long_answer_that_ends_in_a_short_period_is_no_rate() -> None:
    tested = limiter()
    start(tested, HIGH, 0.0)
    for tick in range(1, 5):
        tested.close_period(2.0 * tick)
    release(tested, 0.0, Outcome.SUCCESS, 9.9)
    assert tested.view(10.0).service_rps == pytest.approx(1.9 / 2.0 / 9.9)


def test_what_was_found_in_one_period_does_not_count_for_the_next() -> None:
    tested = limiter(inflight_start=10, min_share=0.0)
    fill(tested)
    for _ in range(10):
        release(tested, 0.0, Outcome.SUCCESS, 0.1)
    assert start(tested, HIGH, 0.2)
    tested.close_period(0.5)
    assert tested.period.peak == 1, "one is still inside"
    fill(tested, 0.6)
    rejected(tested, HIGH, 0.6, slo_s=0.01)
    for _ in range(2):
        release(tested, 0.6, Outcome.SUCCESS, 0.9)
    tested.close_period(1.0)
    assert tested.service.measured
    assert not tested.period.limited
    tested.service.measured = False
    for _ in range(2):
        release(tested, 0.6, Outcome.SUCCESS, 1.1)
    tested.close_period(1.5)
    assert not tested.service.measured


def test_the_number_in_flight_decides_whether_latency_is_unloaded() -> None:
    """A quarter of the limit, for the whole life of an answer; and only after the first completion."""
    tested = limiter(inflight_start=12)
    first = start(tested, HIGH, 0.0)
    early = start(tested, HIGH, 0.0)
    assert first
    assert early
    tested.release(first, Outcome.SUCCESS, 0.3)
    tested.release(early, Outcome.SUCCESS, 0.31)
    few = [start(tested, HIGH, 0.4) for _ in range(3)]
    for one in few:
        assert one
        tested.release(one, Outcome.SUCCESS, 0.5)
    many = [start(tested, HIGH, 0.6) for _ in range(4)]
    for one in many:
        assert one
        tested.release(one, Outcome.SUCCESS, 1.1)
    late = start(tested, HIGH, 1.2)
    assert late
    tested.release(late, Outcome.SUCCESS, 1.35)
    tested.close_period(9.0)
    assert list(tested.work_classes[""].unloaded) == pytest.approx([0.1, 0.1, 0.1, 0.15])
    assert tested.view(9.0).unloaded_s == pytest.approx(0.1)


@pytest.mark.parametrize("by", ["line_up", "rescue", "charge"])
def test_every_way_in_counts_for_the_peak(by: str) -> None:
    tested = knowing(100.0, min_share=0.2, limit=1)
    if by == "line_up":
        fill(tested)
        wait(tested, HIGH)
        tested.period.peak = 0
        end(tested, 0.0)
    elif by == "rescue":
        assert reserve(tested, LOW, 1.0) is not None
    else:
        over(tested, HIGH)
    assert tested.period.peak == 1


@pytest.mark.parametrize(
    ("outcome", "lasted_s", "counts"),
    [
        (Outcome.SUCCESS, 0.001, True),
        (Outcome.FAILURE, 0.049, False),
        (Outcome.FAILURE, 0.051, True),
        (Outcome.SLOW, 0.001, True),
        (Outcome.NEUTRAL, 0.5, False),
    ],
)
def test_only_success_and_failure_count_as_completions(
    outcome: Outcome, lasted_s: float, counts: bool
) -> None:
    tested = limiter()
    one = tested.work_classes[""]
    one.unloaded_s = 0.1
    start(tested, HIGH, 0.0)
    release(tested, 0.0, outcome, lasted_s)
    assert tested.period.done == one.done == counts
    assert tested.period.ended == ([one] if counts else [])
    assert one.total_s == pytest.approx(lasted_s if counts else 0.0)
    assert tested.in_flight == 0


def test_while_nothing_is_known_failures_are_no_evidence() -> None:
    tested = limiter()
    start(tested, HIGH, 0.0)
    release(tested, 0.0, Outcome.FAILURE, 0.4)
    assert tested.view(0.5).unloaded_s is None


def test_half_of_an_unloaded_answer_is_learnt_with_it() -> None:
    tested = limiter()
    for now in (0.0, 0.21):
        start(tested, HIGH, now)
        release(tested, now, Outcome.SUCCESS, now + 0.2, QUIET)
    tested.close_period(0.5)
    assert tested.service.unloaded_s == pytest.approx(0.2)
    for started_s, ended_s in ((0.5, 0.599), (0.6, 0.701)):
        start(tested, HIGH, started_s)
        release(tested, started_s, Outcome.FAILURE, ended_s)
    assert tested.period.done == 1


def test_a_clock_that_goes_back_stands_still() -> None:
    tested = limiter(inflight_start=1, inflight_floor=1)
    start(tested, HIGH, 5.0)
    ticket = wait(tested, HIGH, 3.0)
    assert ticket.arrived_s == 5.0
    release(tested, 5.0, Outcome.SUCCESS, 4.0)
    assert tested.work_classes[""].total_s == 0.0
    (called,) = tested.pop_ready(1.0)
    assert called.called_s == 5.0
    tested.cancel(called, 2.0)
    tested.close_period(0.0)
    assert tested.period.starts_s == pytest.approx(0.0)
    assert tested.view(0.0).limit == 1.0


def test_a_pause_with_a_clock_that_goes_back_is_no_negative_time() -> None:
    tested = limiter()
    one = start(tested, HIGH, 5.0)
    assert one
    tested.pause(one, 4.0)
    tested.resume(one, 3.0)
    tested.release(one, Outcome.SUCCESS, 2.0)
    assert one.work_class.total_s == 0.0
    assert tested.period.starts_s == pytest.approx(0.0)


@pytest.mark.parametrize(("limited", "lowered"), [(True, False), (False, True)])
def test_the_first_limit_falls_with_the_first_objective_unless_it_was_reached(
    limited: bool, lowered: bool
) -> None:
    tested = AdaptiveConcurrencyLimiter(ConcurrencySettings(), 0.0, memory_target=0.92)
    work_class, period = tested.work_classes[""], tested.period
    work_class.learned_slo_s, work_class.done, work_class.total_s = 2.0, 64, 6.4
    period.ended, period.limited = [work_class], limited
    tested.close_period(10.0)
    assert (tested.limit == 16.0) is lowered
