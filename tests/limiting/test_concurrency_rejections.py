"""Who is refused, why, and when it is to come again."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.types import Decision, Demand, Priority, Reason
from tests.limiting.measured_limiters import (
    HIGH,
    LOW,
    MID,
    WAITING,
    come,
    end,
    fill,
    knowing,
    limiter,
    rejected,
    wait,
)


def test_queue_is_bounded() -> None:
    tested = fill(knowing(100.0, queue_max=2))
    wait(tested, MID)
    wait(tested, MID)
    got = rejected(tested, MID)
    assert (got.detail, got.retry_after_s, got.reset_after_s) == ("queue:full", 0.01, 0.01)
    assert wait(tested, HIGH).state is WAITING, "each line has its own"


def test_full_queue_unmeasured_retries_after_a_mean_latency() -> None:
    tested = fill(limiter(queue_max=0))
    got = rejected(tested, MID)
    assert (got.detail, got.retry_after_s) == ("queue:full", 0.05)


def test_rejection_carries_the_figures() -> None:
    got = rejected(fill(knowing(100.0, 100.0, limit=4)), LOW)
    assert (got.limit, got.remaining) == (4, 0)


def test_expired_ticket_has_a_retry_after() -> None:
    tested = fill(knowing(100.0, limit=1, queue_max=100))
    ticket = wait(tested, HIGH)
    for _ in range(50):
        wait(tested, HIGH, 0.4)
    (dropped,) = tested.pop_ready(0.5)
    assert dropped is ticket
    got = tested.rejection(ticket, 0.5)
    assert (got.allowed, got.reason, got.detail) == (False, Reason.QUEUE, "queue:timeout")
    assert got.retry_after_s == 0.0, "fifty before it are just few enough again"
    come(tested, HIGH, 0.5)
    assert tested.rejection(ticket, 0.5).retry_after_s == pytest.approx(0.01)


def test_expired_ticket_of_an_empty_queue_retries_at_once() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, HIGH)
    tested.pop_ready(0.5)
    assert tested.rejection(ticket, 0.5).retry_after_s == 0.0


# --- when to come again ---


@given(
    priority=st.sampled_from([HIGH, MID, LOW]),
    rate=st.floats(2.0, 100.0),
    demand=st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.45)),
    waiting=st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 20))] * 3),
    latency_s=st.sampled_from([0.01, 0.5, 1.4, 1.6]),
)
def test_rejected_before_the_promised_time_and_queued_at_it(
    priority: Priority,
    rate: float,
    demand: tuple[float, float],
    waiting: tuple[int, int, int],
    latency_s: float,
) -> None:
    tested = fill(knowing(rate, demand[0] * rate, demand[1] * rate, limit=10, latency_s=latency_s))
    for other, number in zip(Priority, waiting, strict=True):
        for _ in range(number):
            ticket = Ticket(Demand(other), 0.0, 1e6, other + 1)  # of endless patience
            tested.queues.all[ticket.queue_index][ticket] = None
            tested.waiting += 1
    got = come(tested, priority)
    if not isinstance(got, Decision):
        return
    promised, completions = got.retry_after_s, 0
    while (completions + 1) / rate <= promised:
        before = copy.deepcopy(tested)
        again = rejected(before, priority, completions / rate)
        assert completions / rate + again.retry_after_s == pytest.approx(promised)
        completions += 1
        end(tested, completions / rate)
    assert isinstance(come(tested, priority, promised), Ticket | None)
    assert completions > 0


def test_unmeasured_service_retries_at_the_end_of_the_period() -> None:
    tested = fill(limiter(inflight_start=20))
    for _ in range(20):
        wait(tested, LOW, 0.3)
    got = rejected(tested, LOW, 0.3)
    assert got.detail == "queue:slow"
    assert 0.3 + got.retry_after_s == pytest.approx(0.5)
    for _ in range(20):
        end(tested, 0.45)
        wait(tested, LOW, 0.45)
    rejected(tested, LOW, 0.499)
    assert isinstance(come(tested, LOW, 0.3 + got.retry_after_s), Ticket), "52/s are known"


def test_a_class_that_is_left_nothing_comes_again_when_demand_is_counted_anew() -> None:
    tested = fill(knowing(100.0, 120.0, period_s=0.5))
    got = rejected(tested, LOW, 0.2)
    assert 0.2 + got.retry_after_s == pytest.approx(0.5)
    rejected(tested, LOW, 0.499)
    assert isinstance(come(tested, LOW, 0.2 + got.retry_after_s), Ticket)


def test_a_class_that_is_left_nothing_waits_for_those_before_it_at_least() -> None:
    tested = fill(knowing(10.0, 120.0, period_s=0.5, queue_max=100))
    for _ in range(6):
        wait(tested, HIGH, 0.2, slo_s=100.0)
    assert rejected(tested, LOW, 0.2).retry_after_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("opened_s", "arrived_s"), [(1e9, 1e9 + 0.1), (1e9, 1e9 + 1 / 3), (2.0**-52, 0.25 + 2.0**-53)]
)
def test_a_promise_is_never_a_rounding_error_early(opened_s: float, arrived_s: float) -> None:
    tested = fill(limiter(opened_s, inflight_start=1, inflight_floor=1, slo_s=6.0), opened_s)
    wait(tested, LOW, opened_s)
    got = rejected(tested, LOW, arrived_s)
    ends_s = tested.period.opened_s + tested.service.longest_s
    assert ends_s <= arrived_s + got.retry_after_s < opened_s + 1.5 + 1e-6
