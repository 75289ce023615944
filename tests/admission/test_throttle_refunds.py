"""Queued requests that were not admitted are not charged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoglm_throttle import (
    Demand,
    Outcome,
    Priority,
    Reason,
    Rejection,
)
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.work_class import COUNTED
from autoglm_throttle.testing import ManualThrottle
from tests.admission.limited_throttle import (
    NO_REMAINING_STATE,
    Request,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    queued,
    rejection_for,
    remaining_state,
    slot_of,
    ticket_for,
    warmed,
    with_budget,
)

HIGH, MID, LOW = Priority


def dropped(throttle: ManualThrottle, ticket: Ticket) -> None:
    """Expire the queue timeout."""
    throttle.clock.advance(ticket.max_wait_s)
    ((same, verdict),) = throttle.called()
    assert same is ticket
    assert isinstance(verdict, Rejection)


def left(throttle: ManualThrottle, ticket: Ticket) -> None:
    """Cancel the ticket twice."""
    throttle.leave(ticket)
    throttle.leave(ticket)


def called_and_left(throttle: ManualThrottle, ticket: Ticket) -> None:
    """Cancel the ticket after its admission."""
    limiter = throttle.admission.parts.settlement.limiter
    running = Request(limiter.work_classes[""], COUNTED, throttle.clock())
    limiter.release(running, Outcome.NEUTRAL, throttle.clock())
    throttle.admission.parts.settlement.call_ready(throttle.clock())
    assert ticket.state is TicketState.CALLED
    throttle.leave(ticket)
    slot_of(limiter, Demand(), throttle.clock())  # the slot that was lent


OUTCOMES_OF_CALLS = [dropped, left, called_and_left]


class TestNothingIsCharged:
    """Queued requests that were not admitted are not charged."""

    @pytest.mark.parametrize("end_way", OUTCOMES_OF_CALLS)
    @pytest.mark.parametrize(
        "demand",
        [
            Demand(MID, "u"),
            Demand(HIGH, "u", 2.5, address="here"),
            Demand(HIGH, "u", 7.0),
            Demand(LOW, "new", address="elsewhere"),
        ],
    )
    @pytest.mark.parametrize("borrow", ["off", "any"])
    def test_tokens_and_units_equal_those_without_the_request(
        self, end_way: Callable[[ManualThrottle, Ticket], None], demand: Demand, borrow: str
    ) -> None:
        first, other = (
            warmed(
                limited_throttle(
                    user_limit="20/minute;12/second", borrow=borrow, rate_high_rps="5/s", burst_s=2.0
                )
            )
            for _ in range(2)
        )
        for throttle in (first, other):
            permit_for(throttle, Demand(HIGH, "u", 4.0, address="here"))
        if borrow == "off" and demand.cost == 7.0:
            first.clock.advance(0.2)
            other.clock.advance(0.2)
        start_s = first.clock()
        end_way(first, ticket_for(first, demand))
        other.clock.advance(first.clock() - start_s)
        assert first.snapshot().tokens == pytest.approx(other.snapshot().tokens)
        assert remaining_state(first) == NO_REMAINING_STATE
        assert in_flight(first) == in_flight(other) == 1
        for user, address in (("u", "here"), ("new", "elsewhere"), ("third", "here")):
            requested = Demand(user=user, address=address, holds_slot=False)
            assert permit_for(first, requested).decision == permit_for(other, requested).decision

    @pytest.mark.parametrize("end_way", OUTCOMES_OF_CALLS)
    def test_the_shared_budget_gets_its_token_back(
        self, end_way: Callable[[ManualThrottle, Ticket], None]
    ) -> None:
        throttle = warmed(limited_throttle(policy="adaptive"))
        permits_for(throttle)
        budget = with_budget(throttle, 0.001).bucket
        before = budget.tokens(throttle.clock())
        ticket = ticket_for(throttle, Demand(HIGH))
        assert budget.tokens(throttle.clock()) == pytest.approx(before - 1.0)
        end_way(throttle, ticket)
        assert budget.tokens(throttle.clock()) == pytest.approx(before, abs=0.001)

    def test_slot_not_charged_to_the_budget_is_not_refunded(self) -> None:
        throttle = warmed(limited_throttle(policy="adaptive"))
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(HIGH))
        budget = with_budget(throttle, 0.001)
        permit_for(throttle, Demand(HIGH, holds_slot=False))
        budget.take(HIGH, throttle.clock())
        before = budget.bucket.tokens(throttle.clock())
        throttle.leave(ticket)
        assert budget.bucket.tokens(throttle.clock()) == before

    def test_units_are_refunded_after_a_later_clock_reading(self) -> None:
        """An older clock reading does not turn back the time of the limiter."""
        throttle = warmed(limited_throttle(user_limit="5/minute"))
        permits_for(throttle)
        throttle.clock._now_s -= 0.003
        ticket = ticket_for(throttle, Demand(user="u"))
        throttle.leave(ticket)
        assert permit_for(throttle, Demand(user="u", holds_slot=False)).decision.remaining == 4

    def test_user_rejection_leaves_the_queue_at_once(self) -> None:
        throttle = warmed(limited_throttle(user_limit="1/minute"))
        permit_for(throttle, Demand(user="u"))
        tokens = throttle.snapshot().tokens
        assert rejection_for(throttle, Demand(user="u")).decision.reason is Reason.USER
        assert throttle.snapshot().tokens == tokens
        assert remaining_state(throttle) == NO_REMAINING_STATE
        assert queued(throttle, MID) == (0, 0.0)


@pytest.mark.parametrize("address", ["", "bbbb"])
def test_a_request_that_the_queue_rejects_gets_its_units_back(address: str) -> None:
    throttle = limited_throttle(queue_max=0, user_limit="5/minute", address_factor=1.0)
    demand = Demand(MID, "aaaa", address=address)
    running = permit_for(throttle, Demand(MID, "other"))
    for _ in range(20):
        assert rejection_for(throttle, demand).decision.reason is Reason.QUEUE
    running.settle()
    for _ in range(5):
        permit_for(throttle, demand).settle()
    assert rejection_for(throttle, demand).decision.reason is Reason.USER
