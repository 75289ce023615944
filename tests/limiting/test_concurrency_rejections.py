"""Who is refused, why, and when it is to come again."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.limiting.queue_wait import RETRY_MAX_S, TURNS_MAX
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
    assert (got.detail, got.retry_after_s, got.reset_after_s) == ("queue:full", 0.2, 0.2), "two latencies"
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
    assert got.retry_after_s == pytest.approx(0.2), "two mean latencies at least"
    for _ in range(9):
        tested.rejection(ticket, 0.5)
    assert tested.rejection(ticket, 0.5).retry_after_s == pytest.approx(11 / 50), (
        "its turn among the rejected"
    )


def test_expired_ticket_of_an_empty_queue_retries_after_two_latencies() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, HIGH)
    tested.pop_ready(0.5)
    assert tested.rejection(ticket, 0.5).retry_after_s == 0.2


# --- when to come again ---


@given(
    priority=st.sampled_from([HIGH, MID, LOW]),
    rate=st.floats(2.0, 100.0),
    demand=st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.45)),
    waiting=st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 20))] * 3),
    latency_s=st.sampled_from([0.01, 0.5, 1.4, 1.6]),
)
def test_rejected_when_too_many_are_ahead_and_queued_when_those_have_been_served(
    priority: Priority,
    rate: float,
    demand: tuple[float, float],
    waiting: tuple[int, int, int],
    latency_s: float,
) -> None:
    """The time told is a turn in the retry schedule, never earlier than the wait at the measured rate."""
    tested = fill(knowing(rate, demand[0] * rate, demand[1] * rate, limit=10, latency_s=latency_s))
    for other, number in zip(Priority, waiting, strict=True):
        for _ in range(number):
            ticket = Ticket(
                Demand(other), 0.0, 1e6, other + 1, tested.work_classes[""]
            )  # of endless patience
            tested.queues.all[ticket.queue_index].append(ticket)
            tested.waiting += 1
    got = come(tested, priority)
    if not isinstance(got, Decision):
        return
    completions = 0
    while isinstance(come(copy.deepcopy(tested), priority, completions / rate), Decision):
        completions += 1
        end(tested, completions / rate)
    assert completions / rate <= got.retry_after_s + 1e-9, "then it may wait or has a slot"
    assert got.retry_after_s >= max(2.0 * latency_s, 2.0 / rate) - 1e-9


@given(
    rate=st.floats(0.01, 1000.0),
    steps=st.lists(st.tuples(st.floats(0.0, 5.0), st.booleans()), min_size=1, max_size=200),
)
def test_turns_of_the_retry_schedule_are_monotone_and_bounded(
    rate: float, steps: list[tuple[float, bool]]
) -> None:
    tested, now, last = limiter()._wait, 0.0, 0.0
    for step, back in steps:
        now += step
        turn = now + tested.next_turn_s("", rate, now)
        assert turn - now <= RETRY_MAX_S + 1e-9
        assert turn >= last - 1e-9, "nobody comes before those who were rejected before"
        if turn - now < RETRY_MAX_S - 1e-9:
            assert turn >= max(last, now) + 2.0 / rate - 1e-6, "at half of the rate"
        last = turn
        assert tested.backlog_s(now) == pytest.approx(turn - now)
        assert tested.backlog_s(turn + 1.0) == 0.0
        if back:
            assert tested.backlog_s(now - 3.0) <= turn - now + 3.0 + 1e-9


def test_a_crowd_is_told_one_after_another_and_no_longer_than_a_minute() -> None:
    tested = fill(knowing(10.0, limit=1, queue_max=0))
    told = [rejected(tested, HIGH).retry_after_s for _ in range(1000)]
    assert told[:3] == pytest.approx([0.2, 0.4, 0.6])
    assert told == sorted(told)
    assert max(told) <= 60.0 / 1.1, "jitter adds a tenth"
    assert tested.view(0.0).retry_backlog_s == pytest.approx(max(told))


def test_unmeasured_service_retries_at_the_end_of_the_period() -> None:
    tested = fill(limiter(inflight_start=20))
    got = rejected(tested, LOW, 0.3, slo_s=0.05)
    assert got.detail == "queue:slow", "it cannot wait at all"
    assert 0.3 + got.retry_after_s == pytest.approx(2.0)


def test_a_class_that_is_left_nothing_comes_again_when_demand_is_counted_anew() -> None:
    tested = fill(knowing(100.0, 120.0, period_s=0.5))
    got = rejected(tested, LOW, 0.2)
    assert 0.2 + got.retry_after_s == pytest.approx(2.0)
    rejected(tested, LOW, 1.9)
    assert isinstance(come(tested, LOW, 0.2 + got.retry_after_s), Ticket)


def test_a_class_that_is_left_nothing_waits_for_those_before_it_at_least() -> None:
    tested = fill(knowing(10.0, 120.0, period_s=0.5, queue_max=100))
    tested.service.patience_s = 99.0
    for _ in range(30):
        wait(tested, HIGH, 0.2, slo_s=100.0)
    assert rejected(tested, LOW, 0.2).retry_after_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("opened_s", "arrived_s"), [(1e9, 1e9 + 0.1), (1e9, 1e9 + 1 / 3), (2.0**-52, 0.25 + 2.0**-53)]
)
def test_a_promise_is_never_a_rounding_error_early(opened_s: float, arrived_s: float) -> None:
    tested = fill(limiter(opened_s, inflight_start=1, inflight_floor=1, slo_s=6.0), opened_s)
    wait(tested, LOW, opened_s)
    got = rejected(tested, LOW, arrived_s, slo_s=0.01)
    ends_s = tested.period.opened_s + tested.service.longest_s
    assert ends_s <= arrived_s + got.retry_after_s < opened_s + 6.0 + 1e-6


def test_a_turn_is_taken_once_and_not_before_its_time() -> None:
    tested = limiter()._wait
    turn = tested.next_turn_s("a", 0.5, 0.0)
    assert turn == 4.0
    assert not tested.take_turn("a", turn - 0.01)
    assert not tested.take_turn("b", turn)
    assert tested.take_turn("a", turn)
    assert not tested.take_turn("a", turn)
    tested.next_turn_s("a", 0.5, 0.0)
    assert tested.next_turn_s("a", 0.5, 0.0) == 12.0
    assert not tested.take_turn("a", 8.0), "who came too early has a later one"
    tested.next_turn_s("", 0.5, 0.0)
    assert not tested.take_turn("", 99.0), "without a user nobody can be told from the others"


def test_turns_of_so_many_users_are_remembered() -> None:
    tested = limiter()._wait
    for number in range(TURNS_MAX + 1):
        tested.next_turn_s(str(number), 1000.0, 0.0)
    assert len(tested.turns) == TURNS_MAX
    assert not tested.take_turn("0", 1e9)
    assert tested.take_turn("1", 1e9)


def test_a_request_in_its_turn_may_wait_as_long_as_its_objective_allows() -> None:
    tested = fill(knowing(10.0, limit=1, latency_s=0.1))

    def ask(user: str, now: float) -> Ticket | Decision:
        return tested.enqueue(Demand(MID, user), tested.work_classes[""], now)

    for _ in range(6):
        wait(tested, HIGH)
    told = ask("a", 0.0)
    assert isinstance(told, Decision)
    assert told.retry_after_s is not None
    now = told.retry_after_s + 10.0
    tested.pop_ready(now)
    for _ in range(6):
        wait(tested, HIGH, now)
    assert isinstance(ask("b", now), Decision)
    late = ask("a", now)
    assert isinstance(late, Ticket)
    assert late.max_wait_s == pytest.approx(2.0 - 1.3 * 0.1), "not a quarter of the objective, 0.5 s"
    assert isinstance(ask("a", now), Decision), "the turn has been used up"
