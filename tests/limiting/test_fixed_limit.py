"""A fixed bound of the requests in flight: refuses, and never lets wait."""

from __future__ import annotations

import inspect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.ticket import Ticket, TicketState
from autoglm_throttle.limiting.work_class import COUNTED, NO_SLOT, PAUSED, RESUMED
from autoglm_throttle.types import Decision, Demand, LimiterReport, Outcome, Priority, Reason
from tests.limiting.measured_limiters import over, release, start


def full(limit: int = 2) -> FixedConcurrencyLimit:
    tested = FixedConcurrencyLimit(limit)
    for _ in range(limit):
        assert start(tested, Priority.MID, 0.0)
    return tested


def refusal(tested: FixedConcurrencyLimit, now: float = 0.0) -> Decision:
    kind = tested.work_classes[""]
    assert not tested.try_acquire(Demand(Priority.HIGH), kind, now)
    got = tested.enqueue(Demand(Priority.HIGH), kind, now)
    assert isinstance(got, Decision)
    return got


def test_request_at_the_limit_is_rejected() -> None:
    tested = full(2)
    got = refusal(tested)
    assert (got.allowed, got.reason, got.detail, got.policy) == (False, Reason.QUEUE, "queue:cap", "queue")
    assert (got.limit, got.remaining) == (2.0, 0)
    assert tested.in_flight == 2
    release(tested, 0.0, Outcome.NEUTRAL, 0.1)
    assert start(tested, Priority.MID, 0.1)


def test_a_slot_is_free_again_after_its_mean_time_divided_by_their_number() -> None:
    tested = full(4)
    assert refusal(tested).retry_after_s == pytest.approx(0.05 / 4), "nothing has ended yet"
    for tick in range(200):
        release(tested, float(tick), Outcome.SUCCESS, tick + 2.0)
        start(tested, Priority.MID, float(tick))
    got = refusal(tested)
    assert got.retry_after_s == got.reset_after_s == pytest.approx(2.0 / 4)
    release(tested, 9.0, Outcome.SUCCESS, 9.0)
    assert tested.view(9.0).latency_s == pytest.approx(1.8), "the newest weighs a tenth"


def test_a_clock_that_goes_back_is_no_negative_time() -> None:
    tested = full(1)
    release(tested, 5.0, Outcome.SUCCESS, 4.0)
    assert tested.view(5.0).latency_s == pytest.approx(0.045)


def test_fixed_limit_has_no_queue() -> None:
    tested = full(1)
    kind = tested.work_classes["any"]
    ticket = Ticket(Demand(), 0.0, 1.0, 1, kind)
    tested.cancel(ticket, 0.0)
    tested.record_arrival(Priority.LOW, 0.0)
    tested.close_period(0.0)
    tested.update_memory(0.99)
    assert tested.enqueue_reserved(Demand(Priority.LOW), kind, 0.0) is None
    assert not tested.expire(ticket, 9.0)
    assert tested.rejection(ticket, 0.0).detail == "queue:cap"
    assert tested.pop_ready(9.0) == ()
    assert (tested.waiting, tested.in_flight) == (0, 1)


def test_rejections_are_reported_once_without_a_rate() -> None:
    tested = full(1)
    assert tested.report() == LimiterReport(False, None, 1, 1.0)
    refusal(tested)
    assert tested.report() == LimiterReport(True, None, 1, 1.0)
    assert tested.report() == LimiterReport(False, None, 1, 1.0)


def test_dry_run_admits_the_would_reject() -> None:
    tested = full(1)
    over(tested, Priority.HIGH)
    assert tested.in_flight == 2
    release(tested, 0.0, Outcome.SUCCESS, 0.1)
    refusal(tested)


def test_a_paused_request_gives_its_slot_back_and_takes_it_again_at_once() -> None:
    tested = FixedConcurrencyLimit(1)
    one = start(tested, Priority.MID, 0.0)
    assert one
    for _ in range(2):
        tested.pause(one, 1.0)
    assert (one.slot, tested.in_flight, tested.paused, tested.view(1.0).paused) == (PAUSED, 0, 1, 1)
    other = start(tested, Priority.MID, 1.0)
    assert other
    for _ in range(2):
        tested.resume(one, 5.0)
    assert (one.slot, tested.in_flight, tested.paused) == (RESUMED, 2, 0)
    refusal(tested)
    tested.release(one, Outcome.SUCCESS, 6.0)
    assert tested.view(6.0).latency_s == pytest.approx(0.05 + 0.1 * (2.0 - 0.05)), (
        "one second before, one after"
    )
    tested.pause(one, 6.0)
    tested.resume(one, 6.0)
    assert (tested.in_flight, tested.paused) == (1, 0), "it has ended"


def test_a_request_that_ends_in_its_pause_leaves_no_slot_twice() -> None:
    tested = FixedConcurrencyLimit(2)
    one = start(tested, Priority.MID, 0.0)
    assert one
    tested.pause(one, 1.0)
    tested.release(one, Outcome.SUCCESS, 9.0)
    assert (one.slot, tested.in_flight, tested.paused) == (NO_SLOT, 0, 0)
    assert tested.view(9.0).latency_s == pytest.approx(0.05 + 0.1 * (1.0 - 0.05))


def test_a_ticket_with_a_slot_that_is_cancelled_frees_it_once() -> None:
    tested = full(2)
    kind = tested.work_classes[""]
    ticket = Ticket.with_slot(Demand(), 0.0, kind, COUNTED)
    assert not ticket.was_queued
    for _ in range(2):
        tested.cancel(ticket, 0.1)
        assert (ticket.state, tested.in_flight) == (TicketState.CANCELLED, 1)


def test_all_names_are_one_class() -> None:
    tested = FixedConcurrencyLimit(1, slo_s=3.0)
    assert tested.work_classes["a"] is tested.work_classes["b"]
    assert len(tested.work_classes) == 0, "made-up names fill no table"
    view = tested.view(0.0)
    assert (view.slo_s, view.slo_learned, view.work_classes) == (3.0, False, ())


def test_it_shows_its_state() -> None:
    tested = full(4)
    release(tested, 0.0, Outcome.SUCCESS, 0.05)
    view = tested.view(0.0)
    assert (view.limit, view.in_flight, view.waiting, view.pressure) == (4.0, 3, (0, 0, 0), 0.75)
    assert (view.service_rps, view.unloaded_s, view.demand_rps) == (None, None, (0.0, 0.0, 0.0))
    assert (view.memory_cap, view.budget_s) == (math.inf, math.inf)
    assert (view.memory_blind, view.slo_unreachable) == (False, False)


def test_fixed_limit_has_every_method_of_the_adaptive() -> None:
    for name, verb in inspect.getmembers(AdaptiveConcurrencyLimiter, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(FixedConcurrencyLimit, name)) == inspect.signature(verb), name


@given(limit=st.integers(1, 20), steps=st.lists(st.booleans(), max_size=200))
def test_never_more_in_flight_than_the_bound(limit: int, steps: list[bool]) -> None:
    tested, inside = FixedConcurrencyLimit(limit), 0
    for arrives in steps:
        if arrives:
            entered = start(tested, Priority.MID, 0.0) is not None
            assert entered is (inside < limit)
            inside += entered
        elif inside:
            release(tested, 0.0, Outcome.SUCCESS, 0.0)
            inside -= 1
        assert tested.in_flight == inside
