"""Bounds in addition to the policy ``adaptive``: memory, objective of a request, hard bound, fork."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority, Reason
from autoglm_throttle.limiting.concurrency_limiter import TicketState
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Policy
from tests.admission.limited_throttle import (
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    rejection_for,
    ticket_for,
    warmed,
)

HIGH, MID, LOW = Priority


class TestMemory:
    """The memory cap follows the fill of the devices."""

    def filled(self, throttle: ManualThrottle, ratio: float) -> None:
        throttle.gpu.memory_used_bytes = round(ratio * 80 * 1024**3)
        throttle.tick()

    @pytest.mark.parametrize("policy", ["adaptive", "concurrency"])
    def test_bounds_the_requests_in_flight(self, policy: Any) -> None:
        throttle = throttle_for_tests(policy=policy, min_share=0.0)
        self.filled(throttle, 0.2)
        permits_for(throttle, 10)
        self.filled(throttle, 0.56)
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert limiter.memory_cap == pytest.approx(20.0)
        assert limiter.limit == pytest.approx(20.0)
        permits_for(throttle, 10)
        assert not isinstance(throttle.try_admit(Demand()), Permit)

    def test_rows_that_were_seen_before_teach_nothing(self) -> None:
        throttle = throttle_for_tests(policy="adaptive")
        self.filled(throttle, 0.2)
        permits_for(throttle, 10)
        self.filled(throttle, 0.56)
        permits_for(throttle, 5)
        throttle.gpu.stale()
        throttle.tick(2)
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert limiter.memory_cap == pytest.approx(20.0)

    def test_rising_cap_calls_queued_tickets(self) -> None:
        throttle = throttle_for_tests(policy="concurrency", slo_s=240.0)
        self.filled(throttle, 0.2)
        permits = permits_for(throttle, 10)
        self.filled(throttle, 0.92)
        ticket = ticket_for(throttle, Demand())
        self.filled(throttle, 0.5)
        assert ticket.state is TicketState.CALLED
        ((called, permit),) = throttle.called()
        assert called is ticket
        assert isinstance(permit, Permit)
        assert len(permits) + 1 == in_flight(throttle)

    def test_arrival_after_a_rise_calls_tickets_ahead(self) -> None:
        throttle = throttle_for_tests(policy="concurrency", slo_s=240.0, user_limit="100/minute")
        self.filled(throttle, 0.2)
        permits_for(throttle, 10)
        self.filled(throttle, 0.92)
        tickets = [ticket_for(throttle, Demand(LOW)) for _ in range(3)]
        throttle.admission.parts.settlement.limiter.update_memory(0.85)  # room for one more
        tickets.append(ticket_for(throttle, Demand(LOW)))
        assert [ticket.state.name for ticket in tickets] == ["CALLED", "WAITING", "WAITING", "WAITING"]

    def test_user_rejection_leaves_the_new_slot_to_the_queue(self) -> None:
        throttle = throttle_for_tests(policy="concurrency", slo_s=240.0, user_limit="20/minute")
        permit_for(throttle, Demand(HIGH, "u", 20.0, holds_slot=False))
        self.filled(throttle, 0.2)
        permits_for(throttle, 10)
        self.filled(throttle, 0.92)
        ticket = ticket_for(throttle, Demand(LOW))
        throttle.admission.parts.settlement.limiter.update_memory(0.85)
        assert rejection_for(throttle, Demand(HIGH, "u")).decision.reason is Reason.USER
        assert ticket.state is TicketState.CALLED


class TestObjective:
    """A request with an objective of its own."""

    def test_slo_too_short_to_queue_is_rejected_at_once(self) -> None:
        throttle = warmed(limited_throttle(slo_s=240.0))
        permits_for(throttle)
        rejection = rejection_for(throttle, Demand(HIGH, slo_s=0.001)).decision
        assert (rejection.reason, rejection.detail) == (Reason.QUEUE, "queue:slow")
        assert ticket_for(throttle, Demand(HIGH, slo_s=10.0)).max_wait_s == 2.5
        assert ticket_for(throttle, Demand(HIGH)).max_wait_s == 60.0

    def test_one_may_have_a_slot_that_is_free(self) -> None:
        permit_for(warmed(limited_throttle()), Demand(HIGH, slo_s=0.001))


class TestHardBound:
    """``INFLIGHT_MAX`` without a queue."""

    @pytest.mark.parametrize("policy", ["tiers", "fixed"])
    def test_request_above_the_bound_is_rejected(self, policy: Any) -> None:
        throttle = throttle_for_tests(policy=policy, inflight_max=4, user_limit="100/minute")
        permits = permits_for(throttle, 4)
        tokens = throttle.snapshot().tokens
        rejection = rejection_for(throttle, Demand(HIGH, "u")).decision
        assert (rejection.reason, rejection.detail, rejection.limit) == (Reason.QUEUE, "queue:cap", 4)
        assert 0.0 < rejection.retry_after_s < 1.0
        assert throttle.snapshot().tokens == tokens
        permit_for(throttle, Demand(HIGH, holds_slot=False))
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert (limiter.limit, limiter.in_flight, limiter.pressure) == (4, 4, 1.0)
        permits[0].settle()
        assert permit_for(throttle, Demand(HIGH, "u")).decision.remaining == 99
        assert throttle.called() == []

    @pytest.mark.parametrize("policy", ["tiers", "fixed"])
    def test_user_rejection_releases_the_slot(self, policy: Any) -> None:
        throttle = throttle_for_tests(policy=policy, inflight_max=4, user_limit="1/minute")
        permit_for(throttle, Demand(user="u"))
        for _ in range(5):
            assert rejection_for(throttle, Demand(user="u")).decision.reason is Reason.USER
        assert in_flight(throttle) == 1

    @pytest.mark.parametrize("policy", list(Policy))
    def test_without_bound_requests_in_flight_are_counted(self, policy: Policy) -> None:
        throttle = throttle_for_tests(policy=policy)
        permits = permits_for(throttle, 50)
        assert in_flight(throttle) == 50
        for permit in permits:
            permit.settle()
        assert in_flight(throttle) == 0

    def test_limiter_never_exceeds_the_hard_bound(self) -> None:
        throttle = throttle_for_tests(policy="concurrency", slo_s=2.0, inflight_start=2, inflight_max=3)
        running: list[Permit] = []
        for _ in range(300):
            verdicts = [throttle.try_admit(Demand(HIGH)) for _ in range(2)]
            running += [verdict for verdict in verdicts if isinstance(verdict, Permit)]
            assert in_flight(throttle) <= 3
            throttle.clock.advance(0.01)
            if len(running) > 1:
                running.pop(0).settle()
            running += [permit for _, permit in throttle.called() if isinstance(permit, Permit)]
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert limiter.limit == 3.0


FORK = """
import os, signal
from autoglm_throttle import Demand, Permit, Settings, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.testing import ManualClock

signal.alarm(120)
throttle = Throttle(
    Settings(
        policy="concurrency", gpu="none", inflight_start=2, inflight_max=2, slo_s=400.0, user_limit="9/minute"
    ),
    clock=ManualClock(),
)
def ask():
    return throttle.try_admit(Demand(user="u"))

def shown():
    limiter = throttle.snapshot().concurrency
    active = sum(throttle.snapshot().active.values())
    return limiter.in_flight, sum(limiter.waiting), len(throttle.admission.parts.settlement.unclaimed), active

first, second = ask(), ask()
called, waiting = ask(), ask()
first.settle()
assert (called.state, waiting.state) == (TicketState.CALLED, TicketState.WAITING)
before = shown()
assert before == (2, 1, 1, 1), before
child = os.fork()
if child == 0:
    signal.alarm(120)
    assert shown() == (0, 0, 0, 0), shown()
    tokens = throttle.snapshot().tokens
    second.settle()
    throttle.leave(called)
    throttle.leave(waiting)
    assert shown() == (0, 0, 0, 0), shown()
    assert throttle.snapshot().tokens == tokens
    assert throttle.called() == []
    own = [ask(), ask()]
    assert all(isinstance(permit, Permit) for permit in own)
    assert isinstance(ask(), Ticket)
    assert shown() == (2, 1, 0, 2), shown()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert shown() == before
second.settle()
assert [ticket for ticket, _ in throttle.called()] == [called, waiting]
print("both lived")
"""


def test_forked_child_has_its_own_empty_limiter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=False
    )
    assert done.stdout == "both lived\n", done.stderr
