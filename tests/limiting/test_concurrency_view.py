"""What the gate tells of itself: in a dry run, as evidence and in its view."""

from __future__ import annotations

import math

import pytest

from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.types import Decision, LimiterReport, Outcome
from tests.limiting.measured_limiters import (
    DROPPED,
    HIGH,
    LOW,
    MID,
    come,
    fill,
    knowing,
    limiter,
    over,
    rejected,
    release,
    start,
    wait,
)


def test_dry_run_admits_the_would_reject() -> None:
    tested = fill(limiter(inflight_start=2))
    over(tested, HIGH)
    assert tested.in_flight == 3
    release(tested, 0.0, Outcome.SUCCESS, 0.1)
    assert not start(tested, HIGH, 0.1), "still two in flight"
    release(tested, 0.0, Outcome.SUCCESS, 0.2)
    release(tested, 0.0, Outcome.SUCCESS, 0.4)
    tested.close_period(0.5)
    assert tested.in_flight == 0
    assert tested.period.starts_s == pytest.approx(0.0)


def test_dry_run_would_reject_as_many_as_a_live_limiter() -> None:
    live, dry = fill(knowing(100.0, 40.0)), fill(knowing(100.0, 40.0, dry_run=True))
    for _ in range(100):
        expected, got = come(live, MID), come(dry, MID)
        assert type(got) is type(expected)
        if isinstance(got, Ticket):
            dry.cancel(got, 0.0)
        else:
            assert got == expected
        over(dry, MID)
        if isinstance(expected, Decision):
            break
    assert dry.in_flight == 4 + 32
    assert dry.report().confirmed
    assert dry.report().confirmed, "somebody would still wait"


def test_dry_run_counts_the_queue_of_each_priority() -> None:
    """Its free slots go to the most important of the requests above the limit, as in a live queue."""
    live, dry = (fill(limiter(inflight_start=4, queue_max=3, dry_run=run)) for run in (False, True))
    for _ in range(3):
        wait(live, HIGH)
        dry.cancel(wait(dry, HIGH), 0.0)
        over(dry, HIGH)
    for tested in (live, dry):
        assert rejected(tested, HIGH).detail == "queue:full"
        assert isinstance(come(tested, MID), Ticket)
    assert dry._wait._would_wait == [3, 0, 0]
    over(dry, LOW)
    release(dry, 0.0, Outcome.SUCCESS, 0.1)
    assert isinstance(come(dry, MID, 0.1), Ticket)
    assert dry._wait._would_wait == [2, 0, 1]


def test_report_counts_waiters_and_rejections_of_the_limiter() -> None:
    tested = limiter(inflight_start=1, inflight_floor=1)
    assert tested.report() == LimiterReport(False, None, 0, 1.0)
    tested.record_arrival(LOW, 0.1)
    fill(tested, 0.1)
    assert tested.report() == LimiterReport(False, None, 1, 1.0), "what a bucket refused is none"
    ticket = wait(tested, LOW, 0.1)
    assert tested.report().confirmed
    assert tested.report().confirmed, "somebody still waits"
    rejected(tested, LOW, 0.1, slo_s=0.01)
    tested.cancel(ticket, 0.1)
    assert tested.report().confirmed
    assert not tested.report().confirmed, "told once"


@pytest.mark.parametrize("by_timer", [True, False])
def test_report_counts_queue_timeouts(by_timer: bool) -> None:
    tested = fill(limiter(inflight_start=1, inflight_floor=1))
    ticket = wait(tested, LOW, 0.1)
    if by_timer:
        tested.expire(ticket, 0.61)
    else:
        tested.pop_ready(0.61)
    assert ticket.state is DROPPED
    assert tested.report().confirmed
    assert not tested.report().confirmed


def test_evidence_carries_what_was_measured() -> None:
    tested = knowing(80.0, limit=7)
    start(tested, HIGH, 0.0)
    assert tested.report() == LimiterReport(False, 80.0, 1, 7.0)


def test_the_view_shows_all_figures() -> None:
    tested = fill(knowing(100.0, 30.0, 20.0, 10.0, limit=8))
    for priority in (HIGH, LOW, LOW):
        wait(tested, priority)
    tested.work_classes[""].unloaded_s = 3.0
    tested.service.aim_s, tested.service.slo_unreachable = 7.5, True
    view = tested.view(0.0)
    assert (view.limit, view.in_flight, view.waiting) == (8.0, 8, (1, 0, 2))
    assert (view.service_rps, view.demand_rps, view.latency_s) == (100.0, (30.0, 20.0, 10.0), 0.1)
    assert (view.unloaded_s, view.budget_s, view.slo_unreachable) == (3.0, 7.5, True)
    assert (view.memory_cap, view.memory_blind) == (math.inf, False)


def test_pressure_is_demand_by_rate_once_the_rate_is_measured() -> None:
    tested = knowing(100.0, 150.0, 60.0, 0.0, limit=8)
    for _ in range(6):
        start(tested, HIGH, 0.0)
    assert tested.view(0.0).pressure == 0.75, "an unlimited service shows only what it was asked for"
    tested.service.measured = True
    assert tested.view(0.0).pressure == pytest.approx(2.1)


def test_a_ticket_shows_its_state() -> None:
    ticket = wait(fill(knowing(100.0, limit=2)), MID)
    assert repr(ticket) == "Ticket(WAITING, queue 2, Demand(mid, user='', cost=1))"
