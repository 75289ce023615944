"""The lines before the gate: who may wait, whose turn it is, and who goes."""

from __future__ import annotations

import copy

import pytest

from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.limiting.work_class import COUNTED, NO_SLOT, UNCOUNTED
from autoglm_throttle.types import Decision, Demand, Outcome, Priority
from tests.limiting.measured_limiters import (
    CALLED,
    DROPPED,
    HIGH,
    LEFT,
    LOW,
    MID,
    WAITING,
    come,
    end,
    fill,
    knowing,
    limiter,
    rejected,
    release,
    reserve,
    wait,
)

# --- who waits ---


def test_queue_has_only_its_hard_bound_until_measured() -> None:
    tested = fill(limiter(inflight_start=3, queue_max=5))
    assert [wait(tested, LOW).state for _ in range(5)] == [WAITING] * 5
    assert rejected(tested, LOW, 0.1).detail == "queue:full"
    assert tested.waiting == 5
    assert wait(tested, HIGH, 0.1).state is WAITING, "nobody stands before it"


@pytest.mark.parametrize(
    ("priority", "demand", "places"),
    [
        (HIGH, (), 50),  # 100/s x 0.5 s
        (MID, (40.0,), 30),  # 60/s are left
        (LOW, (40.0, 40.0), 10),
        (LOW, (60.0, 38.0), 0),  # 2/s are left: too few
        (HIGH, (500.0, 500.0, 500.0), 50),  # its own demand does not count
    ],
)
def test_so_many_wait_as_can_be_served_in_time(
    priority: Priority, demand: tuple[float, ...], places: int
) -> None:
    tested = fill(knowing(100.0, *demand))
    accepted = 0
    while isinstance(come(tested, priority), Ticket):
        accepted += 1
    assert accepted == (places + 1 if places else 0), "with nobody before it, one may always wait"


def test_an_objective_of_its_own_decides_how_long_a_request_waits() -> None:
    tested = fill(knowing(100.0))
    assert wait(tested, HIGH).max_wait_s == 0.5
    assert wait(tested, HIGH, slo_s=1.0).max_wait_s == 0.25
    assert wait(tested, HIGH, slo_s=60.0).max_wait_s == 0.5, "no longer than the others: it would stand first"
    tested.service.patience_s = 99.0
    assert wait(tested, HIGH, slo_s=60.0).max_wait_s == 15.0
    assert rejected(tested, HIGH, slo_s=0.13).detail == "queue:slow", "no time to wait at all"
    assert wait(tested, HIGH, slo_s=0.2).max_wait_s == pytest.approx(0.05)
    wait(tested, HIGH)
    assert rejected(tested, HIGH, slo_s=0.2).detail == "queue:slow", "six before it are too many for 50 ms"


def test_wait_budget_is_a_setting() -> None:
    assert wait(fill(knowing(100.0, wait_budget=0.5)), HIGH).max_wait_s == 1.0


def test_slots_that_a_grown_limit_has_just_opened_are_not_held_against_a_newcomer() -> None:
    tested = fill(knowing(10.0, limit=2))
    for _ in range(6):
        wait(tested, HIGH)
    assert isinstance(rejected(copy.deepcopy(tested), HIGH), Decision)
    tested.limit, tested.capacity = 4.0, 4
    assert isinstance(come(copy.deepcopy(tested), HIGH), Ticket), "four before it in time"
    tested.limit, tested.capacity = 99.0, 99
    tested.service.demand_rps[0] = 99.0
    newcomer = wait(tested, LOW)
    assert list(tested.pop_ready(0.0))[-1] is newcomer, "although high demands everything"


# --- whose turn it is ---


def test_queues_are_served_by_priority_then_in_order() -> None:
    tested = fill(knowing(100.0, min_share=0.1, limit=1))
    low, high, mid, high2 = (wait(tested, priority) for priority in (LOW, HIGH, MID, HIGH))
    rescued = reserve(tested, LOW, 0.4)
    order = [end(tested, 0.4) for _ in range(5)]
    assert order == [[rescued], [high], [high2], [mid], [low]]
    assert all(ticket.state is CALLED and ticket.called_s == 0.4 for (ticket,) in order)
    assert tested.in_flight == 1
    assert tested.waiting == 0


def test_empty_queue_allocates_no_ready_list() -> None:
    tested = limiter()
    assert tested.pop_ready(0.0) is tested.pop_ready(1.0)


def test_heads_that_waited_too_long_are_dropped_and_make_way() -> None:
    tested = fill(knowing(100.0, limit=1))
    first, second = wait(tested, MID, 0.0), wait(tested, MID, 0.3)
    assert tested.pop_ready(0.499) == []
    assert tested.pop_ready(0.5) == [first]
    assert first.state is DROPPED
    assert end(tested, 0.6) == [second]
    assert second.state is CALLED


def test_ticket_at_its_queue_timeout_is_not_called() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, HIGH)
    assert end(tested, 0.5) == [ticket]
    assert ticket.state is DROPPED
    assert tested.in_flight == 0


def test_a_waiters_own_timer_drops_it_wherever_it_stands() -> None:
    tested = fill(knowing(100.0))
    first, hasty = wait(tested, HIGH), wait(tested, HIGH, slo_s=0.5)
    assert not tested.expire(hasty, 0.1249)
    assert tested.pop_ready(0.125) == [], "it is not the head"
    assert tested.expire(hasty, 0.125)
    assert hasty.state is DROPPED
    assert not tested.expire(hasty, 0.125)
    assert tested.waiting == 1
    assert end(tested, 0.2) == [first]
    assert not tested.expire(first, 99.0), "it has been called"


# --- who goes ---


def test_waiter_is_cancelled_anywhere_in_the_queue() -> None:
    tested = fill(knowing(100.0, limit=1))
    first, second, third = (wait(tested, MID) for _ in range(3))
    tested.cancel(second, 0.1)
    assert (second.state, tested.waiting, tested.in_flight) == (LEFT, 2, 1)
    tested.cancel(second, 0.1)
    assert tested.waiting == 2
    assert end(tested, 0.1) == [first]
    assert end(tested, 0.1) == [third]


def test_called_waiter_that_cancels_frees_the_slot_once() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket, other = wait(tested, MID), wait(tested, MID)
    end(tested, 0.1)
    for _ in range(2):
        tested.cancel(ticket, 0.2)
        assert (ticket.state, tested.in_flight) == (LEFT, 0)
    assert tested.pop_ready(0.2) == [other]


def test_expired_ticket_has_nothing_to_cancel() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, MID)
    tested.pop_ready(5.0)
    tested.cancel(ticket, 5.0)
    assert (ticket.state, tested.in_flight, tested.waiting) == (DROPPED, 1, 0)


def test_a_ticket_behind_a_more_patient_one_expires_at_its_turn() -> None:
    tested = fill(knowing(100.0, limit=2))
    patient, hasty = wait(tested, HIGH), wait(tested, HIGH, slo_s=0.5)
    release(tested, 0.0, Outcome.SUCCESS, 0.2)
    release(tested, 0.0, Outcome.SUCCESS, 0.2)
    assert list(tested.pop_ready(0.2)) == [patient, hasty]
    assert (patient.state, hasty.state, tested.in_flight) == (CALLED, DROPPED, 1)


@pytest.mark.parametrize(("slot", "left"), [(NO_SLOT, 2), (UNCOUNTED, 2), (COUNTED, 1)])
def test_a_ticket_that_was_never_queued_releases_what_it_holds(slot: int, left: int) -> None:
    tested = fill(knowing(100.0, limit=2))
    kind = tested.work_classes[""]
    held = kind.in_flight
    ticket = Ticket.with_slot(Demand(), 0.0, kind, slot)
    kind.in_flight += slot == UNCOUNTED
    tested.cancel(ticket, 0.1)
    assert (ticket.state, tested.in_flight) == (LEFT, left)
    assert kind.in_flight == held - (slot == COUNTED)
