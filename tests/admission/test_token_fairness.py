"""Light users beside one whose requests are ten times as long: queued requests are served by their tokens."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority
from autoglm_throttle.limiting.queue import TicketQueue
from autoglm_throttle.limiting.ticket import Ticket, TicketCharges
from autoglm_throttle.limiting.token_limits import Reservation
from autoglm_throttle.limiting.work_class import WorkClass
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import TokenCost

SLOTS = 8
LIGHT_USERS = 9
CLIENTS = 2  # Of each light user
HEAVY_CLIENTS = 6
TENFOLD = 10
TOKEN_S = 0.001  # Time in the service of each output token
LIGHT = TokenCost(200, 1000)
END_S = 300.0


def percentile_95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


class Service:
    """Clients that each send one request after the other, before a service with slots, in virtual time."""

    def __init__(self, estimate: Callable[[TokenCost], TokenCost | None], *, heavy: bool) -> None:
        limits: dict[str, Any] = {"tokens_limit": "16000000/second", "rate_mid_rps": 1e5, "slo_s": 600}
        bounds: dict[str, Any] = {"inflight_floor": SLOTS, "inflight_max": SLOTS}
        self.throttle = throttle_for_tests(policy="concurrency", **limits, **bounds)
        self.random = random.Random(1)
        self.estimate, self.heavy = estimate, heavy
        self.order = itertools.count()
        self.ends: list[tuple[float, int, Permit, TicketCharges, TokenCost]] = []
        self.waiting: dict[Ticket, tuple[TicketCharges, TokenCost]] = {}
        self.latencies_s: list[float] = []

    def arrive(self, user: str) -> None:
        admission = self.throttle.admission
        length = (TENFOLD if user == "heavy" else 1) * self.random.uniform(0.5, 1.5)
        cost = TokenCost(LIGHT.input, int(length * LIGHT.output))
        charged: Any = admission.try_charge(Demand(Priority.MID, user), tokens=self.estimate(cost))
        charges = charged.charges
        verdict: Any = admission.try_slot(charged)
        if isinstance(verdict, Permit):
            self.begin(verdict, charges, cost)
        else:
            assert isinstance(verdict, Ticket)
            self.waiting[verdict] = charges, cost

    def begin(self, permit: Permit, charges: TicketCharges, cost: TokenCost) -> None:
        end_s = self.throttle.clock() + cost.output * TOKEN_S
        heapq.heappush(self.ends, (end_s, next(self.order), permit, charges, cost))

    def run(self) -> float:
        """Return the 95th percentile of the latencies of the light users."""
        users = [f"light {number}" for number in range(LIGHT_USERS)] * CLIENTS
        for user in users + ["heavy"] * HEAVY_CLIENTS * self.heavy:
            self.arrive(user)
        ends_s = self.throttle.clock() + END_S
        while self.throttle.clock() < ends_s:
            end_s, _, permit, charges, cost = heapq.heappop(self.ends)
            self.throttle.clock.advance(max(0.0, end_s - self.throttle.clock()))
            if permit.demand.user != "heavy":
                self.latencies_s.append(end_s - permit.arrived_s)
            self.throttle.admission.verdicts.settle_tokens(charges, cost)
            permit.settle()
            self.arrive(permit.demand.user)
            for ticket, called in self.throttle.admission.verdicts.called():
                assert isinstance(called, Permit), called
                self.begin(called, *self.waiting.pop(ticket))
        return percentile_95(self.latencies_s)


def ratio(estimate: Callable[[TokenCost], TokenCost | None]) -> float:
    """Return the light users' percentile beside the heavy one over that without it."""
    return Service(estimate, heavy=True).run() / Service(estimate, heavy=False).run()


def test_light_users_keep_their_latency_beside_a_tenfold_user() -> None:
    assert ratio(lambda cost: cost) <= 1.5


def test_difference_to_the_estimate_is_charged_at_the_settlement() -> None:
    """All requests are estimated alike; only their settlement tells the heavy ones."""
    assert ratio(lambda _: LIGHT) <= 1.5


def test_without_tokens_each_request_is_a_turn() -> None:
    assert ratio(lambda _: None) > 1.7


def queued(queue: TicketQueue, user: str, tokens: int, now: float) -> Ticket:
    demand = Demand(Priority.MID, user)
    ticket = Ticket(demand, now, 9.0, 2, WorkClass(""))
    ticket.charges = TicketCharges(None, None)
    ticket.charges.reservation = Reservation(demand, TokenCost(tokens, 0), now)
    queue.append(ticket)
    return ticket


@pytest.mark.parametrize(("extra", "users"), [(0.0, "aba"), (3.0, "abb"), (-3.0, "aaa")])
def test_correction_changes_the_next_turn(extra: float, users: str) -> None:
    queue = TicketQueue(fair=True)
    for now in range(3):
        queued(queue, "a", 1000, now)
        queued(queue, "b", 1000, now + 0.5)
    served = []
    for turn in range(3):
        ticket = queue.next()
        assert ticket is not None
        queue.serve(ticket)
        assert ticket.charges.reservation is not None
        assert ticket.charges.reservation.queue is queue
        served.append(ticket.demand.user)
        if not turn:
            queue.charge("a", extra)
            queue.charge("unknown", extra)
    assert "".join(served) == users


def test_corrections_fill_no_heap() -> None:
    queue = TicketQueue(fair=True)
    queued(queue, "a", 1000, 0.0)
    first = queue.next()
    assert first is not None
    queue.serve(first)
    queue.charge("a", 1.0)
    queued(queue, "a", 1000, 1.0)
    for _ in range(1000):
        queue.charge("a", 1.0)
    assert len(queue._turns) < 100
    assert queue.next() is not None
