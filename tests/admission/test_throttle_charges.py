"""Requests charged before their slot: what was not admitted, in whatever order it ends, is given back."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Demand, Permit, Priority, Rejection
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.user_limits import UserLimits
from autoglm_throttle.testing import ManualThrottle
from tests.admission.limited_throttle import (
    NO_REMAINING_STATE,
    active,
    in_flight,
    limited_throttle,
    permit_for,
    remaining_state,
    with_budget,
)
from tests.admission.scripted_throttle import ALICE, ScriptedThrottle
from tests.admission.waiter import let_tasks_run
from tests.store.scripted_store import denied

HIGH, MID, LOW = Priority
USERS, UNITS = ("ann", "bob"), 6
SLOW_RATES: dict[str, Any] = {f"rate_{name}_rps": 0.005 for name in ("high", "mid", "low")}
"""So slow a refill that a token which does not come back stays away."""


def charged(throttle: ManualThrottle, demand: Demand) -> Ticket:
    ticket = throttle.admission.try_charge(demand)
    assert isinstance(ticket, Ticket)
    return ticket


class Model:
    """A throttle, its open requests, and what those hold.

    Args:
        policy: ``tiers`` has no queue.
        has_budget: whether the classes share a budget as well.
    """

    def __init__(self, policy: str, *, has_budget: bool) -> None:
        limits = {"burst_s": 800.0, "queue_max": 1, "user_limit": f"{UNITS}/hour", "borrow": "any"}
        self.throttle = limited_throttle(1, **SLOW_RATES, **limits, policy=policy)
        self.admission = self.throttle.admission
        self.budget = with_budget(self.throttle, 0.001).bucket if has_budget else None
        self.before = self.tokens()
        self.charged: list[Ticket] = []
        self.queued: list[Ticket] = []
        self.waiting: list[tuple[asyncio.Task[Permit | Rejection], Ticket]] = []
        self.running: list[Permit] = []
        self.admitted: list[Demand] = []

    def tokens(self) -> tuple[float, float]:
        """Tokens of all classes together, which may borrow, and those of the budget."""
        now = self.throttle.clock()
        tokens = sum(bucket.tokens(now) for bucket in self.admission.parts.buckets.all)
        return tokens, self.budget.tokens(now) if self.budget is not None else 0.0

    def take(self, verdict: Permit | Ticket | Rejection) -> None:
        if isinstance(verdict, Ticket):
            self.queued.append(verdict)
        elif isinstance(verdict, Permit):
            self.running.append(verdict)
            self.admitted.append(verdict.demand)

    def charge(self, demand: Demand) -> None:
        verdict = self.admission.try_charge(demand)
        if isinstance(verdict, Ticket):
            self.charged.append(verdict)

    def ask(self, ticket: Ticket) -> None:
        self.take(self.admission.try_slot(ticket))

    def leave(self, ticket: Ticket) -> None:
        self.admission.verdicts.leave(ticket)

    def wait(self, ticket: Ticket) -> None:
        self.waiting.append((asyncio.create_task(self.admission.verdicts.wait(ticket)), ticket))

    def cancel(self, waiting: tuple[asyncio.Task[Permit | Rejection], Ticket]) -> None:
        waiting[0].cancel()

    def settle(self, permit: Permit) -> None:
        permit.settle()

    def go_on(self, _demand: Demand) -> None:
        """Let time pass, and take what is ready."""
        self.throttle.clock.advance(0.4)
        for ticket, verdict in self.admission.verdicts.called():
            self.queued.remove(ticket)
            self.take(verdict)

    async def step(self, action: tuple[str, str], number: int, demand: Demand) -> None:
        """Do one of `ACTIONS`, if there is something to do it with."""
        name, among = action
        pool: list[Any] = getattr(self, among, [demand])
        if pool:
            getattr(self, name)(pool.pop(number % len(pool)))
        await let_tasks_run()
        for one in [one for one in self.waiting if one[0].done()]:
            self.waiting.remove(one)
            self.take(one[0].result())

    def check(self) -> None:
        """Compare what is charged with what the open requests hold."""
        queued = [*self.queued, *(ticket for _, ticket in self.waiting)]
        slots = [*(ticket.demand for ticket in queued), *self.admitted]
        demands = [*(ticket.demand for ticket in self.charged), *slots]
        tokens, budget = self.tokens()
        assert self.before[0] - tokens == pytest.approx(sum(one.cost for one in demands), abs=0.49)
        if self.budget is not None:
            assert self.before[1] - budget == pytest.approx(len(slots), abs=0.1)
        units: Counter[str] = Counter()
        for demand in demands:
            units[demand.user] += ceil(demand.cost)
        limits = self.admission.parts.user_limits
        assert isinstance(limits, UserLimits)
        pair = limits._by_priority[HIGH]
        assert pair is not None
        for user in USERS:
            left = decision_of(pair[0].test(pair[0].peek(user), 0, self.throttle.clock())).remaining
            assert UNITS - left == units[user]

    async def end(self) -> None:
        """End all requests."""
        for ticket in (*self.charged, *self.queued):
            self.admission.verdicts.leave(ticket)
        for task, _ in self.waiting:
            task.cancel()
        await let_tasks_run()
        self.charged, self.queued, self.waiting = [], [], []
        while self.running:
            self.running.pop().settle()


ACTIONS = (
    *(("charge", ""), ("charge", ""), ("ask", "charged"), ("ask", "charged"), ("leave", "charged")),
    *(("leave", "queued"), ("wait", "queued"), ("cancel", "waiting"), ("settle", "running"), ("go_on", "")),
)
"""Each action and the requests of which it takes one; none: a new one."""


@given(
    policy=st.sampled_from(("concurrency", "tiers")),
    has_budget=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.sampled_from(ACTIONS),
            st.integers(0, 9),
            st.builds(
                Demand, st.just(HIGH), st.sampled_from(USERS), st.sampled_from((1.0, 1.0, 0.5, 2.5, 7.0))
            ),
        ),
        min_size=10,
        max_size=80,
    ),
)
def test_charges_are_those_of_the_open_and_the_admitted_requests(
    policy: str, has_budget: bool, steps: list[tuple[tuple[str, str], int, Demand]]
) -> None:
    async def run() -> None:
        model = Model(policy, has_budget=has_budget)
        for step in steps:
            await model.step(*step)
            model.check()
        await model.end()
        model.check()
        assert (in_flight(model.throttle), active(model.throttle)) == (0, 0)
        assert remaining_state(model.throttle) == NO_REMAINING_STATE
        assert model.throttle.snapshot().stale_results == 0

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["charged", "called", "queued"])
def test_ticket_that_is_left_twice_is_refunded_once(ends: str) -> None:
    throttle = limited_throttle(**SLOW_RATES, burst_s=2400.0, user_limit="9/hour")
    ticket = charged(throttle, Demand(MID, "ann", 3.0))
    if ends != "charged":
        running = permit_for(throttle, Demand(MID, "bob"))
        first, ticket = ticket, throttle.admission.try_slot(ticket)  # type: ignore[assignment]
        assert isinstance(ticket, Ticket)
        throttle.leave(first)
        if ends == "called":
            running.settle()
            assert ticket.state is TicketState.CALLED
    throttle.leave(ticket)
    throttle.leave(ticket)
    permit = permit_for(throttle, Demand(MID, "ann", holds_slot=False))
    assert permit.decision.remaining == 8
    others = 0.0 if ends == "charged" else 1.0
    assert throttle.snapshot().tokens[MID] == pytest.approx(12.0 - others - 1.0)
    assert throttle.snapshot().oddities["disconnected_in_queue"] == (ends != "charged")


def test_limit_that_has_just_grown_calls_the_queue() -> None:
    throttle = limited_throttle()
    permit_for(throttle, Demand(MID))
    tickets = [charged(throttle, Demand(MID)) for _ in range(2)]
    first = throttle.admission.try_slot(tickets[0])
    throttle.admission.parts.settlement.limiter.capacity = 3
    second = throttle.admission.try_slot(tickets[1])
    states = [one.state for one in (first, second) if isinstance(one, Ticket)]
    assert states == [TicketState.CALLED] * 2


def test_arrival_is_counted_once() -> None:
    throttle = limited_throttle()
    period = throttle.admission.parts.settlement.limiter.period  # type: ignore[union-attr]
    ticket = charged(throttle, Demand(MID))
    assert period.arrived[MID] == 0
    assert isinstance(throttle.admission.try_slot(ticket), Permit)
    assert period.arrived[MID] == 1


async def test_ticket_with_a_pending_check_gets_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, denied())
    ticket = site.throttle.admission.try_charge(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    with pytest.raises(ValueError, match="has a pending store check"):
        site.throttle.admission.try_slot(ticket)
    assert isinstance(await site.throttle.admission.verdicts.wait(ticket), Rejection)
    assert site.left() == site.tokens
    assert site.store.given_back == []
