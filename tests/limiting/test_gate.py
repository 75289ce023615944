"""The gate by example: who gets in, who waits, who is refused and until when."""

from __future__ import annotations

import copy
import dis
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.gate import Gate, GateRules, Ticket, TicketState
from autoglm_throttle.model import Decision, Demand, Evidence, Outcome, Priority, Reason
from tests.limiting.gate_plant import Plant

HIGH, MID, LOW = Priority
WAITING, CALLED, DROPPED, LEFT = TicketState
FROZEN: dict[str, Any] = {"period_s": 1e6}
"""No period ends, so what the gate knows stays as a test has set it."""


def gate(**rules: Any) -> Gate:
    return Gate(GateRules(**rules), 0.0)


def knowing(rate: float, *demand: float, limit: int = 4, latency_s: float = 0.1, **rules: Any) -> Gate:
    """A gate that has measured a service, and whose knowledge stands still."""
    tested = gate(inflight_start=limit, **(FROZEN | {"min_share": 0.0} | rules))
    tested._service.rate_rps = rate
    tested._service.latency_s = latency_s
    tested._service.demand_rps = [*demand, 0.0, 0.0, 0.0][:3]
    return tested


def fill(tested: Gate, now: float = 0.0) -> Gate:
    while tested.in_flight < tested._room:
        assert tested.enter(Demand(HIGH), now)
    return tested


def come(
    tested: Gate, priority: Priority, now: float = 0.0, slo_s: float | None = None
) -> Ticket | Decision | None:
    """None: let in."""
    demand = Demand(priority, slo_s=slo_s)
    return None if tested.enter(demand, now) else tested.line_up(demand, now)


def wait(tested: Gate, priority: Priority, now: float = 0.0, slo_s: float | None = None) -> Ticket:
    got = come(tested, priority, now, slo_s)
    assert isinstance(got, Ticket)
    return got


def refused(tested: Gate, priority: Priority, now: float = 0.0, slo_s: float | None = None) -> Decision:
    got = come(tested, priority, now, slo_s)
    assert isinstance(got, Decision)
    assert not got.allowed
    assert got.reason is Reason.QUEUE
    assert got.policy == "queue"
    return got


def end(tested: Gate, now: float, started_s: float = 0.0) -> list[Ticket]:
    tested.finish(started_s, Outcome.SUCCESS, now)
    return list(tested.ready(now))


# --- who gets in ---


def test_as_many_get_in_as_the_limit_says() -> None:
    tested = gate(inflight_start=3)
    assert [tested.enter(Demand(LOW), 0.1) for _ in range(5)] == [True, True, True, False, False]
    assert tested.in_flight == 3


def test_the_hard_bound_joins_the_limit() -> None:
    tested = fill(gate(inflight_start=64, inflight_max=5))
    assert tested.in_flight == 5
    assert tested.view(0.0).limit == 5.0


def test_a_lower_line_does_not_hold_up_a_higher_class() -> None:
    tested = fill(knowing(100.0))
    low = wait(tested, LOW)
    tested.finish(0.0, Outcome.SUCCESS, 0.01)
    assert copy.deepcopy(tested).enter(Demand(MID), 0.01)
    assert not copy.deepcopy(tested).enter(Demand(LOW), 0.01)
    tested.leave(low, 0.01)
    tested._wait(Ticket(Demand(MID), 0.01, 0.5, 2))
    assert not copy.deepcopy(tested).enter(Demand(LOW), 0.01), "somebody stands before it"
    assert not copy.deepcopy(tested).enter(Demand(MID), 0.01)
    assert tested.enter(Demand(HIGH), 0.01)


def test_the_share_lane_stands_before_everybody() -> None:
    tested = fill(knowing(100.0, min_share=0.1))
    rescued = tested.rescue(Demand(LOW), 0.5)
    assert rescued is not None
    assert rescued.state is WAITING
    tested.finish(0.0, Outcome.SUCCESS, 0.5)
    assert not tested.enter(Demand(HIGH), 0.5)


@pytest.mark.parametrize(("path", "calls"), [(Gate.enter, 2), (Gate.finish, 1)])
def test_the_usual_path_makes_no_container_and_calls_nobody(path: Callable[..., Any], calls: int) -> None:
    names = [instruction.opname for instruction in dis.get_instructions(path)]
    assert not [name for name in names if name.startswith(("BUILD", "FORMAT", "MAKE", "GET_ITER", "LIST"))]
    made = [name for name in names if name == "CALL"]
    assert len(made) == calls, "only where a period may be over or somebody waits"


# --- who waits ---


def test_as_many_wait_as_may_be_inside_while_nothing_is_known() -> None:
    tested = fill(gate(inflight_start=3))
    assert [wait(tested, LOW).state for _ in range(3)] == [WAITING] * 3
    assert refused(tested, LOW, 0.1).detail == "queue:slow"
    assert tested.waiting == 3
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
    assert wait(tested, HIGH).patience_s == 0.5
    assert wait(tested, HIGH, slo_s=1.0).patience_s == 0.25
    assert wait(tested, HIGH, slo_s=60.0).patience_s == 15.0
    assert refused(tested, HIGH, slo_s=0.13).detail == "queue:slow", "no time to wait at all"
    assert wait(tested, HIGH, slo_s=0.2).patience_s == pytest.approx(0.05)
    assert [wait(tested, HIGH).state for _ in range(2)]
    assert refused(tested, HIGH, slo_s=0.2).detail == "queue:slow", "six before it are too many for 50 ms"


def test_a_line_has_an_end() -> None:
    tested = fill(knowing(100.0, queue_max=2))
    wait(tested, MID)
    wait(tested, MID)
    got = refused(tested, MID)
    assert (got.detail, got.retry_after_s, got.reset_after_s) == ("queue:full", 0.01, 0.01)
    assert wait(tested, HIGH).state is WAITING, "each line has its own"


def test_a_full_line_of_an_unknown_service_is_tried_again_after_a_mean_answer() -> None:
    tested = fill(gate(queue_max=0))
    got = refused(tested, MID)
    assert (got.detail, got.retry_after_s) == ("queue:full", 0.05)


def test_a_refusal_says_what_there_is() -> None:
    got = refused(fill(knowing(100.0, 100.0, limit=4)), LOW)
    assert (got.limit, got.remaining) == (4, 0)


# --- whose turn it is ---


def test_lines_are_served_in_order_and_each_first_come_first_served() -> None:
    tested = fill(knowing(100.0, min_share=0.1, limit=1))
    low, high, mid, high2 = (wait(tested, priority) for priority in (LOW, HIGH, MID, HIGH))
    rescued = tested.rescue(Demand(LOW), 0.4)
    order = [end(tested, 0.4) for _ in range(5)]
    assert order == [[rescued], [high], [high2], [mid], [low]]
    assert all(ticket.state is CALLED and ticket.called_s == 0.4 for (ticket,) in order)
    assert tested.in_flight == 1
    assert tested.waiting == 0


def test_with_nobody_in_line_ready_makes_no_list() -> None:
    tested = gate()
    assert tested.ready(0.0) is tested.ready(1.0)


def test_heads_that_waited_too_long_are_dropped_and_make_way() -> None:
    tested = fill(knowing(100.0, limit=1))
    first, second = wait(tested, MID, 0.0), wait(tested, MID, 0.3)
    assert tested.ready(0.499) == []
    assert tested.ready(0.5) == [first]
    assert first.state is DROPPED
    assert end(tested, 0.6) == [second]
    assert second.state is CALLED


def test_at_the_end_of_its_patience_nobody_is_called() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, HIGH)
    assert end(tested, 0.5) == [ticket]
    assert ticket.state is DROPPED
    assert tested.in_flight == 0


def test_a_waiters_own_timer_drops_it_wherever_it_stands() -> None:
    tested = fill(knowing(100.0))
    first, hasty = wait(tested, HIGH), wait(tested, HIGH, slo_s=0.5)
    assert not tested.expire(hasty, 0.1249)
    assert tested.ready(0.125) == [], "it is not the head"
    assert tested.expire(hasty, 0.125)
    assert hasty.state is DROPPED
    assert not tested.expire(hasty, 0.125)
    assert tested.waiting == 1
    assert end(tested, 0.2) == [first]
    assert not tested.expire(first, 99.0), "it has been called"


def test_who_was_dropped_is_told_when_to_come_again() -> None:
    tested = fill(knowing(100.0, limit=1, queue_max=100))
    ticket = wait(tested, HIGH)
    for _ in range(50):
        wait(tested, HIGH, 0.4)
    (dropped,) = tested.ready(0.5)
    assert dropped is ticket
    got = tested.refusal(ticket, 0.5)
    assert (got.allowed, got.reason, got.detail) == (False, Reason.QUEUE, "queue:wait")
    assert got.retry_after_s == 0.0, "fifty before it are just few enough again"
    come(tested, HIGH, 0.5)
    assert tested.refusal(ticket, 0.5).retry_after_s == pytest.approx(0.01)


def test_who_was_dropped_from_a_line_that_is_now_empty_may_come_at_once() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, HIGH)
    tested.ready(0.5)
    assert tested.refusal(ticket, 0.5).retry_after_s == 0.0


# --- who goes ---


def test_a_waiter_leaves_from_anywhere_in_the_line() -> None:
    tested = fill(knowing(100.0, limit=1))
    first, second, third = (wait(tested, MID) for _ in range(3))
    tested.leave(second, 0.1)
    assert (second.state, tested.waiting, tested.in_flight) == (LEFT, 2, 1)
    tested.leave(second, 0.1)
    assert tested.waiting == 2
    assert end(tested, 0.1) == [first]
    assert end(tested, 0.1) == [third]


def test_who_was_called_and_goes_frees_the_slot_once() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket, other = wait(tested, MID), wait(tested, MID)
    end(tested, 0.1)
    for _ in range(2):
        tested.leave(ticket, 0.2)
        assert (ticket.state, tested.in_flight) == (LEFT, 0)
    assert tested.ready(0.2) == [other]


def test_who_was_dropped_has_nothing_to_leave() -> None:
    tested = fill(knowing(100.0, limit=1))
    ticket = wait(tested, MID)
    tested.ready(5.0)
    tested.leave(ticket, 5.0)
    assert (ticket.state, tested.in_flight, tested.waiting) == (DROPPED, 1, 0)


def test_slots_that_a_grown_limit_has_just_opened_are_not_held_against_a_newcomer() -> None:
    tested = fill(knowing(10.0, limit=2))
    for _ in range(6):
        wait(tested, HIGH)
    assert isinstance(refused(copy.deepcopy(tested), HIGH), Decision)
    tested._set_limit(4.0)
    assert isinstance(come(copy.deepcopy(tested), HIGH), Ticket), "four before it in time"
    tested._set_limit(99.0)
    tested._service.demand_rps[0] = 99.0
    newcomer = wait(tested, LOW)
    assert list(tested.ready(0.0))[-1] is newcomer, "although high demands everything"


# --- when to come again ---


@given(
    priority=st.sampled_from([HIGH, MID, LOW]),
    rate=st.floats(2.0, 100.0),
    demand=st.tuples(st.floats(0.0, 0.5), st.floats(0.0, 0.45)),
    waiting=st.tuples(*[st.one_of(st.integers(0, 3), st.integers(0, 20))] * 3),
    latency_s=st.sampled_from([0.01, 0.5, 1.4, 1.6]),
)
def test_refused_before_the_promised_instant_and_welcome_at_it(
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
            tested._wait(ticket)
    got = come(tested, priority)
    if not isinstance(got, Decision):
        return
    promised, completions = got.retry_after_s, 0
    while (completions + 1) / rate <= promised:
        before = copy.deepcopy(tested)
        again = refused(before, priority, completions / rate)
        assert completions / rate + again.retry_after_s == pytest.approx(promised)
        completions += 1
        end(tested, completions / rate)
    assert isinstance(come(tested, priority, promised), Ticket | None)
    assert completions > 0


def test_of_an_unknown_service_the_end_of_the_period_tells_more() -> None:
    tested = fill(gate(inflight_start=20))
    for _ in range(20):
        wait(tested, LOW, 0.3)
    got = refused(tested, LOW, 0.3)
    assert got.detail == "queue:slow"
    assert 0.3 + got.retry_after_s == pytest.approx(0.5)
    for _ in range(20):
        end(tested, 0.45)
        wait(tested, LOW, 0.45)
    refused(tested, LOW, 0.499)
    assert isinstance(come(tested, LOW, 0.3 + got.retry_after_s), Ticket), "52/s are known"


def test_a_class_that_is_left_nothing_comes_again_when_demand_is_counted_anew() -> None:
    tested = fill(knowing(100.0, 120.0, period_s=0.5))
    got = refused(tested, LOW, 0.2)
    assert 0.2 + got.retry_after_s == pytest.approx(0.5)
    refused(tested, LOW, 0.499)
    assert isinstance(come(tested, LOW, 0.2 + got.retry_after_s), Ticket)


def test_a_class_that_is_left_nothing_waits_for_those_before_it_at_least() -> None:
    tested = fill(knowing(10.0, 120.0, period_s=0.5, queue_max=100))
    for _ in range(6):
        wait(tested, HIGH, 0.2, slo_s=100.0)
    assert refused(tested, LOW, 0.2).retry_after_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("opened_s", "arrived_s"), [(1e9, 1e9 + 0.1), (1e9, 1e9 + 1 / 3), (2.0**-52, 0.25 + 2.0**-53)]
)
def test_a_promise_is_never_a_rounding_error_early(opened_s: float, arrived_s: float) -> None:
    tested = fill(Gate(GateRules(inflight_start=1, slo_s=6.0), opened_s), opened_s)
    wait(tested, LOW, opened_s)
    got = refused(tested, LOW, arrived_s)
    assert tested._ends_s <= arrived_s + got.retry_after_s < opened_s + 1.5 + 1e-6


# --- the guaranteed share ---


def test_high_is_never_rescued_and_nobody_of_an_unknown_service() -> None:
    tested = knowing(100.0, min_share=0.1)
    assert tested.rescue(Demand(HIGH), 9.0) is None
    assert gate().rescue(Demand(LOW), 9.0) is None


def test_a_rescued_request_gets_a_free_slot_at_once() -> None:
    tested = knowing(100.0, min_share=0.1)
    ticket = tested.rescue(Demand(LOW), 1.0)
    assert ticket is not None
    assert (ticket.state, ticket.called_s, tested.in_flight) == (CALLED, 1.0, 1)
    tested.leave(ticket, 1.1)
    assert tested.in_flight == 0


def test_without_a_slot_it_waits_in_the_first_lane_for_half_of_its_objective() -> None:
    tested = fill(knowing(100.0, 100.0, min_share=0.1))
    first = wait(tested, LOW, 1.0)
    second = wait(tested, MID, 1.0, slo_s=8.0)
    assert (first.state, first.lane, first.patience_s) == (WAITING, 0, 1.0)
    assert (second.lane, second.patience_s) == (0, 4.0)
    assert tested.view(1.0).waiting == (0, 1, 1)
    tested.finish(0.0, Outcome.SUCCESS, 1.0)
    third = tested.rescue(Demand(LOW), 1.0)
    assert third is not None
    assert third.state is WAITING, "two stand before it"


def test_a_rescue_without_a_slot_proves_that_the_limit_was_reached() -> None:
    tested = fill(knowing(100.0, min_share=0.1, period_s=0.5))
    tested.rescue(Demand(LOW), 0.3)
    end(tested, 0.4)
    tested.advance(0.5)
    assert tested._service.measured


@pytest.mark.parametrize("share", [0.01, 0.02, 0.05, 0.2])
@pytest.mark.parametrize(
    ("high", "mid", "low"), [(1.2, 9.0, 0.0), (2.0, 1.0, 3.0), (10.0, 0.0, 0.5), (5.0, 0.02, 0.02)]
)
def test_mid_and_low_get_their_share_in_any_overload(
    high: float, mid: float, low: float, share: float
) -> None:
    rate = 100.0
    plant, load = Plant(GateRules(min_share=share), rate), (high * rate, mid * rate, low * rate)
    plant.run(10.0, (0.2 * rate, 0.1 * rate, 0.1 * rate))
    plant.run(5.0, load)
    plant.forget()
    plant.run(30.0, load)
    got = plant.served[MID] + plant.served[LOW]
    assert got >= 0.9 * 30.0 * min((mid + low) * rate, share * rate)
    assert plant.served[HIGH] >= (0.93 - share) * 30.0 * rate


def test_a_share_as_great_as_the_demand_serves_nearly_all_of_it() -> None:
    rate = 100.0
    plant = Plant(GateRules(min_share=0.03), rate)
    plant.run(10.0, (2 * rate, 0.03 * rate, 0.0))
    plant.forget()
    plant.run(30.0, (2 * rate, 0.03 * rate, 0.0))
    assert plant.served[MID] >= 0.9 * plant.offered[MID]


def test_a_sudden_flood_of_low_does_not_push_high_aside() -> None:
    rate = 200.0
    plant = Plant(GateRules(), rate)
    plant.run(10.0, (0.9 * rate, 0.0, 0.0))
    plant.forget()
    plant.run(1.0, (0.9 * rate, 0.0, 50 * rate))
    assert plant.refused[HIGH] == 0
    assert plant.served[HIGH] >= 0.85 * plant.offered[HIGH]


def test_without_a_share_priority_is_strict() -> None:
    rate = 200.0
    plant = Plant(GateRules(min_share=0.0), rate)
    plant.run(10.0, (3 * rate, rate, rate))
    plant.forget()
    plant.run(10.0, (3 * rate, rate, rate))
    assert plant.served[MID] == plant.served[LOW] == 0


# --- periods ---


def test_a_period_ends_after_half_a_second_at_the_usual_objective() -> None:
    tested = gate()
    for _ in range(10):
        tested.enter(Demand(MID), 0.1)
    tested.advance(0.499)
    assert tested.view(0.499).demand_rps == (0.0, 0.0, 0.0)
    tested.advance(0.5)
    assert tested.view(0.5).demand_rps == pytest.approx((0.0, 8.0, 0.0))


def test_refusals_before_the_gate_are_demand_too() -> None:
    tested = gate()
    for _ in range(10):
        tested.count(LOW, 0.1)
    assert tested.view(0.5).demand_rps == pytest.approx((0.0, 0.0, 8.0))
    assert tested.in_flight == 0


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
    tested = gate(slo_s=60.0)
    tested._service.latency_s = latency_s
    tested._set_limit(64.0)
    for _ in range(8):
        tested.enter(Demand(HIGH), 0.0)
    for _ in range(done):
        tested.finish(0.0, Outcome.SUCCESS, 0.3)
    tested.advance(now)
    assert (tested._service.demand_rps[0] > 0.0) is closed


def test_time_in_flight_is_summed_at_each_change() -> None:
    tested = gate()
    tested.enter(Demand(HIGH), 0.1)
    tested.enter(Demand(HIGH), 0.2)
    tested.finish(0.1, Outcome.SUCCESS, 0.3)
    tested.advance(0.5)  # 0.2 + 0.3 request seconds in 0.5 s: one in flight; 1 / 0.2 s
    assert tested.view(0.5).service_rps == pytest.approx(2.0), "1 done in 0.5 s"
    tested.finish(0.2, Outcome.SUCCESS, 0.9)
    tested.advance(1.0)  # 0.4 s in flight of 0.5; its answer took 0.7 s
    assert tested.view(1.0).service_rps == pytest.approx(2.0)
    assert tested._starts_s == pytest.approx(0.0)


def test_a_long_answer_that_ends_in_a_short_period_is_no_rate() -> None:
    tested = gate()
    tested.enter(Demand(HIGH), 0.0)
    for tick in range(1, 20):
        tested.advance(tick / 2)
    tested.finish(0.0, Outcome.SUCCESS, 9.9)
    assert tested.view(10.0).service_rps == pytest.approx(0.4 / 0.5 / 9.9)


def test_what_was_found_in_one_period_does_not_count_for_the_next() -> None:
    tested = gate(inflight_start=10, min_share=0.0)
    fill(tested)
    for _ in range(10):
        tested.finish(0.0, Outcome.SUCCESS, 0.1)
    assert tested.enter(Demand(HIGH), 0.2)
    tested.advance(0.5)
    assert tested._peak == 1, "one is still inside"
    fill(tested, 0.6)
    refused(tested, HIGH, 0.6, slo_s=0.01)
    tested.advance(1.0)
    assert not tested._limited
    tested._service.measured = False
    tested.finish(0.6, Outcome.SUCCESS, 1.1)
    tested.advance(1.5)
    assert not tested._service.measured


def test_the_hard_bound_bounds_the_limit_so_that_littles_law_holds() -> None:
    plant = Plant(GateRules(inflight_start=10, inflight_max=20), 100.0)
    plant.run(20.0, (500.0, 0.0, 0.0))
    assert plant.gate.limit == 20.0
    assert plant.gate.view(plant.now).service_rps == pytest.approx(100.0, rel=0.1)


def test_peak_in_flight_decides_whether_latency_is_unloaded() -> None:
    slow, loaded = gate(), gate()
    for tested, number in ((slow, 2), (loaded, 3)):
        tested._service.unloaded_s = tested._service._slow_s = 0.1
        tested._service._periods = 50
        for _ in range(number):
            tested.enter(Demand(HIGH), 0.0)
        for _ in range(number):
            tested.finish(0.0, Outcome.SUCCESS, 0.4)
        tested.advance(0.5)
    assert slow.view(0.5).unloaded_s == pytest.approx(0.19)
    assert loaded.view(0.5).unloaded_s == pytest.approx(0.1)


@pytest.mark.parametrize("by", ["line_up", "rescue", "charge"])
def test_every_way_in_counts_for_the_peak(by: str) -> None:
    tested = knowing(100.0, min_share=0.2, limit=1)
    if by == "line_up":
        fill(tested)
        wait(tested, HIGH)
        tested._peak = 0
        end(tested, 0.0)
    elif by == "rescue":
        assert tested.rescue(Demand(LOW), 1.0) is not None
    else:
        tested.charge()
    assert tested._peak == 1


@pytest.mark.parametrize(
    ("outcome", "lasted_s", "counts"),
    [
        (Outcome.SUCCESS, 0.001, True),
        (Outcome.FAILURE, 0.049, False),
        (Outcome.FAILURE, 0.051, True),
        (Outcome.NEUTRAL, 0.5, False),
    ],
)
def test_only_endings_that_tell_of_the_service_count(outcome: Outcome, lasted_s: float, counts: bool) -> None:
    tested = gate()
    tested._service.unloaded_s = 0.1
    tested._set_limit(64.0)
    tested.enter(Demand(HIGH), 0.0)
    tested.finish(0.0, outcome, lasted_s)
    assert tested._done == counts
    assert tested._total_s == (lasted_s if counts else 0.0)
    assert tested.in_flight == 0


def test_while_nothing_is_known_failures_are_no_evidence() -> None:
    tested = gate()
    tested.enter(Demand(HIGH), 0.0)
    tested.finish(0.0, Outcome.FAILURE, 0.4)
    assert tested.view(0.5).unloaded_s is None


def test_half_of_an_unloaded_answer_is_learnt_with_it() -> None:
    tested = gate()
    tested.enter(Demand(HIGH), 0.0)
    tested.finish(0.0, Outcome.SUCCESS, 0.2)
    tested.advance(0.5)
    for started_s, ended_s in ((0.5, 0.599), (0.6, 0.701)):
        tested.enter(Demand(HIGH), started_s)
        tested.finish(started_s, Outcome.FAILURE, ended_s)
    assert tested._done == 1


def test_a_clock_that_goes_back_stands_still() -> None:
    tested = gate(inflight_start=1)
    tested.enter(Demand(HIGH), 5.0)
    ticket = wait(tested, HIGH, 3.0)
    assert ticket.arrived_s == 5.0
    tested.finish(5.0, Outcome.SUCCESS, 4.0)
    assert tested._total_s == 0.0
    (called,) = tested.ready(1.0)
    assert called.called_s == 5.0
    tested.leave(called, 2.0)
    tested.advance(0.0)
    assert tested._starts_s == pytest.approx(0.0)
    assert tested.view(0.0).limit == 1.0


def test_the_limit_grows_with_proof_and_settles_where_littles_law_says() -> None:
    plant = Plant(GateRules(), 200.0)
    plant.run(10.0, (100.0, 0.0, 0.0))
    assert plant.gate.limit == 64.0, "nobody found it reached"
    assert plant.gate.view(plant.now).service_rps == pytest.approx(100.0, rel=0.3)
    plant.run(15.0, (600.0, 0.0, 0.0))
    view = plant.gate.view(plant.now)
    assert view.service_rps == pytest.approx(200.0, rel=0.15)
    assert view.limit == pytest.approx(200.0 * 0.5, rel=0.2)
    assert view.latency_s == pytest.approx(0.5, rel=0.2)
    assert plant.served[HIGH] / plant.now == pytest.approx((10 * 100 + 15 * 200) / 25, rel=0.03)


@pytest.mark.parametrize("start", [2, 64, 500])
def test_wherever_it_starts_overload_ends_at_the_same_limit(start: int) -> None:
    plant = Plant(GateRules(inflight_start=start), 200.0)
    plant.run(15.0, (600.0, 0.0, 0.0))
    assert plant.gate.limit == pytest.approx(100.0, rel=0.25)


def test_a_hang_keeps_what_is_known() -> None:
    plant = Plant(GateRules(), 200.0)
    plant.run(15.0, (600.0, 0.0, 0.0))
    tested, before = plant.gate, plant.gate.view(plant.now)
    now = plant.now + 0.4  # the period in which the last ones have finished
    tested.advance(now)
    known = tested.view(now)
    for step in range(1, 100):
        come(tested, HIGH, now + step / 10)
        tested.ready(now + step / 10)
    after = tested.view(now + 9.9)
    assert (after.limit, after.service_rps, after.latency_s) == (
        known.limit,
        known.service_rps,
        known.latency_s,
    )
    assert after.service_rps == pytest.approx(before.service_rps, rel=0.3)


# --- memory ---


def test_memory_bounds_the_room_at_once_and_the_limit_from_the_next_period() -> None:
    tested = gate(inflight_start=64)
    tested.memory(0.40)
    for _ in range(10):
        tested.enter(Demand(MID), 0.0)
    tested.memory(0.60)
    assert tested.view(0.0).limit == pytest.approx(26.0)
    assert tested.view(0.0).memory_cap == pytest.approx(26.0)
    assert tested.limit == 64.0
    fill(tested)
    assert tested.in_flight == 26
    tested.advance(0.5)
    assert tested.limit == pytest.approx(26.0)


def test_what_is_not_known_of_the_memory_changes_nothing() -> None:
    tested = gate()
    tested.memory(0.40)
    fill(tested)
    tested.memory(0.99)
    before = tested.view(0.0)
    tested.memory(None)
    assert tested.view(0.0) == before
    assert before.memory_cap < math.inf


def test_an_engine_that_takes_memory_in_advance_is_said_to_be_one() -> None:
    tested = gate()
    tested.memory(0.95)
    fill(tested)
    tested.memory(0.96)
    view = tested.view(0.0)
    assert view.memory_blind
    assert (view.memory_cap, view.limit) == (math.inf, 64.0)


def test_the_idle_fill_follows_a_model_being_loaded_but_not_work() -> None:
    tested = gate()
    for ratio in (0.05, 0.50):
        tested.memory(ratio)
    fill(tested)
    tested.memory(0.60)
    assert tested.view(0.0).memory_cap == pytest.approx(0.42 * 64 / 0.10)
    for _ in range(64):
        tested.finish(0.0, Outcome.SUCCESS, 0.1)
    tested.advance(0.5)
    tested.memory(0.80)  # an allocator keeps what work once took
    fill(tested, 0.5)
    tested.memory(0.85)
    assert tested.view(0.5).memory_cap == pytest.approx(0.42 * 64 / 0.35)


# --- dry run, evidence, view ---


def test_a_dry_run_lets_in_whom_it_would_refuse() -> None:
    tested = fill(gate(inflight_start=2))
    tested.charge()
    assert tested.in_flight == 3
    tested.finish(0.0, Outcome.SUCCESS, 0.1)
    assert not tested.enter(Demand(HIGH), 0.1), "still two in flight"
    tested.finish(0.0, Outcome.SUCCESS, 0.2)
    tested.finish(0.0, Outcome.SUCCESS, 0.4)
    tested.advance(0.5)
    assert tested.in_flight == 0
    assert tested._starts_s == pytest.approx(0.0)


def test_a_dry_run_would_refuse_as_many_as_a_live_gate_does() -> None:
    live, dry = fill(knowing(100.0, 40.0)), fill(knowing(100.0, 40.0, dry_run=True))
    for _ in range(100):
        expected, got = come(live, MID), come(dry, MID)
        assert type(got) is type(expected)
        if isinstance(got, Ticket):
            dry.leave(got, 0.0)
        else:
            assert got == expected
        dry.charge()
        if isinstance(expected, Decision):
            break
    assert dry.in_flight == 4 + 32
    assert dry.evidence().confirmed
    assert dry.evidence().confirmed, "somebody would still wait"


def test_waiters_and_refusals_of_the_gate_alone_are_evidence() -> None:
    tested = gate(inflight_start=1)
    assert tested.evidence() == Evidence(False, None, 0, 1.0)
    tested.count(LOW, 0.1)
    fill(tested, 0.1)
    assert tested.evidence() == Evidence(False, None, 1, 1.0), "what a bucket refused is none"
    ticket = wait(tested, LOW, 0.1)
    assert tested.evidence().confirmed
    assert tested.evidence().confirmed, "somebody still waits"
    refused(tested, LOW, 0.1)
    tested.leave(ticket, 0.1)
    assert tested.evidence().confirmed
    assert not tested.evidence().confirmed, "told once"


@pytest.mark.parametrize("by_timer", [True, False])
def test_who_waited_in_vain_is_evidence(by_timer: bool) -> None:
    tested = fill(gate(inflight_start=1))
    ticket = wait(tested, LOW, 0.1)
    if by_timer:
        tested.expire(ticket, 0.61)
    else:
        tested.ready(0.61)
    assert ticket.state is DROPPED
    assert tested.evidence().confirmed
    assert not tested.evidence().confirmed


def test_evidence_carries_what_was_measured() -> None:
    tested = knowing(80.0, limit=7)
    tested.enter(Demand(HIGH), 0.0)
    assert tested.evidence() == Evidence(False, 80.0, 1, 7.0)


def test_the_view_shows_all_figures() -> None:
    tested = fill(knowing(100.0, 30.0, 20.0, 10.0, limit=8))
    for priority in (HIGH, LOW, LOW):
        wait(tested, priority)
    tested._service.unloaded_s = 3.0
    view = tested.view(0.0)
    assert (view.limit, view.in_flight, view.waiting) == (8.0, 8, (1, 0, 2))
    assert (view.service_rps, view.demand_rps, view.latency_s) == (100.0, (30.0, 20.0, 10.0), 0.1)
    assert (view.unloaded_s, view.budget_s, view.slo_unreachable) == (3.0, 7.5, True)
    assert (view.memory_cap, view.memory_blind) == (math.inf, False)


def test_pressure_is_demand_by_rate_once_the_rate_is_measured() -> None:
    tested = knowing(100.0, 150.0, 60.0, 0.0, limit=8)
    for _ in range(6):
        tested.enter(Demand(HIGH), 0.0)
    assert tested.view(0.0).pressure == 0.75, "an unlimited service shows only what it was asked for"
    tested._service.measured = True
    assert tested.view(0.0).pressure == pytest.approx(2.1)


def test_it_shows_its_state() -> None:
    tested = fill(knowing(100.0, limit=2))
    ticket = wait(tested, MID)
    assert repr(tested) == "Gate(2 of 2 in flight, 1 waiting)"
    assert repr(ticket) == "Ticket(WAITING, lane 2, Demand(mid, user='', cost=1))"
