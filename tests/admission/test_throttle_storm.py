"""Stress tests: many random arrivals, ends and cancellations, after which all counts must match."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from autoglm_throttle import Demand, Outcome, Permit, Priority, Rejection, Throttle
from autoglm_throttle.limiting.concurrency_limiter import Ticket, TicketState
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.limiting.user_limits import UserLimits
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.admission.limited_throttle import NO_REMAINING_STATE, in_flight, remaining_state
from tests.admission.waiter import CANCELLATIONS, Waiter, iterations

pytestmark = pytest.mark.untraced

RATES = {Priority.HIGH: 2000.0, Priority.MID: 2000.0, Priority.LOW: 50.0}
BURST_S = 60.0
STARTS_WITH = 200.0
"""Initial tokens of each class. No bucket fills up in a run, so its tokens are a sum."""

USER_LIMIT = 20_000
"""Units in an hour, longer than any run."""


class Counts:
    """Counts of the test itself, compared with those of the throttle at the end."""

    def __init__(self, seed: int, policy: Any, slots: int) -> None:
        self.random = random.Random(seed)
        self.throttle: ManualThrottle = throttle_for_tests(
            policy=policy,
            inflight_start=slots,
            inflight_max=3 * slots,
            queue_max=40,
            burst_s=BURST_S,
            rate_high_rps=f"{RATES[Priority.HIGH]}/s",
            rate_mid_rps=f"{RATES[Priority.MID]}/s",
            rate_low_rps=f"{RATES[Priority.LOW]}/s",
            user_limit=f"{USER_LIMIT}/hour",
        )
        self.tokens = dict.fromkeys(Priority, STARTS_WITH)
        for bucket in self.throttle.admission.parts.buckets.all:
            bucket.take(bucket.burst - STARTS_WITH, self.throttle.clock())
        self.units: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.requested = 0
        self.users = [f"user {number}" for number in range(6)]

    def demand(self) -> Demand:
        """Draw a demand; one user in six has costs that reach its limit."""
        draw = self.random
        user = draw.choice(self.users)
        cost = 60.0 if user == self.users[0] else draw.choice((1.0, 1.0, 1.0, 0.5, 2.5))
        address = "somewhere" if draw.random() < 0.1 else ""
        slo_s = draw.choice((None, None, None, 0.4))
        self.requested += 1
        return Demand(draw.choice(list(Priority)), user, cost, address=address, slo_s=slo_s)

    def admitted(self, demand: Demand) -> None:
        self.ends["admitted"] += 1
        self.tokens[demand.priority] -= demand.cost
        self.units[demand.user] += ceil(demand.cost)
        if demand.address:
            self.units[demand.address] += ceil(demand.cost)

    def elapse(self, seconds: float) -> None:
        """Advance the time; buckets refill at their current rates."""
        self.throttle.clock.advance(seconds)
        buckets = self.throttle.admission.parts.buckets
        assert isinstance(buckets, PriorityBuckets)
        for priority, bucket in zip(Priority, buckets.all, strict=True):
            self.tokens[priority] += seconds * bucket.rate

    def check_counts(self) -> None:
        """Compare the counts, after the last request has ended."""
        throttle = self.throttle
        snapshot = throttle.snapshot()
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE
        assert not any(snapshot.active.values())
        assert snapshot.stale_results == 0
        requests: Counter[str] = Counter()
        for (_, decision, _), n in snapshot.requests.items():
            requests["admitted" if decision == "admitted" else "refused"] += n
        requests["left"] = snapshot.oddities["disconnected_in_queue"]
        assert requests == self.ends
        assert sum(requests.values()) == self.requested
        for priority in Priority:
            assert snapshot.tokens[priority] == pytest.approx(self.tokens[priority], rel=1e-6)
        kept = throttle.admission.parts.user_limits
        assert isinstance(kept, UserLimits)
        windows = kept._by_priority[0]
        assert windows is not None
        for name in (*self.users, "somewhere"):
            table = windows[1] if name == "somewhere" else windows[0]
            (limit,) = table.limits
            nothing = decision_of(table.test(table.peek(name), 0, throttle.clock()))
            assert limit.limit - nothing.remaining == self.units[name]


class SynchronousStorm:
    """Random calls of try_admit, called, leave and settle; half of the waiters have a wake-up callback."""

    def __init__(self, seed: int, policy: str) -> None:
        self.counts = Counts(seed, policy, slots=16)
        self.throttle = self.counts.throttle
        self.random = self.counts.random
        self.running: list[Permit] = []
        self.waiting: dict[Ticket, None] = {}
        self.woken: list[Ticket] = []

    def run(self, events: int) -> None:
        actions = (self.arrive, self.end, self.leave, self.call, self.resume, self.elapse)
        for action in self.random.choices(actions, weights=(44, 26, 7, 4, 12, 7), k=events):
            action()

    def calm(self) -> None:
        """End the running requests; waiters are cancelled or admitted and ended."""
        for ticket in list(self.waiting)[::2]:
            self.give_up(ticket)
        while self.running or self.waiting:
            self.end()
            self.call()
            self.resume()

    def arrive(self) -> None:
        demand = self.counts.demand()
        verdict = self.throttle.try_admit(demand)
        if isinstance(verdict, Ticket):
            self.waiting[verdict] = None
            if self.random.random() < 0.5 and verdict.state is TicketState.WAITING:
                verdict.on_ready = lambda: self.woken.append(verdict)
        else:
            self.decide(demand, verdict)

    def decide(self, demand: Demand, verdict: Permit | Rejection) -> None:
        if isinstance(verdict, Permit):
            self.running.append(verdict)
            self.counts.admitted(demand)
        else:
            self.counts.ends["refused"] += 1

    def end(self) -> None:
        if self.running:
            index = self.random.randrange(len(self.running))
            self.running[index], self.running[-1] = self.running[-1], self.running[index]
            self.running.pop().settle(self.random.choice(list(Outcome)))

    def leave(self) -> None:
        if self.waiting:
            self.give_up(self.random.choice(list(self.waiting)))

    def give_up(self, ticket: Ticket) -> None:
        del self.waiting[ticket]
        self.throttle.leave(ticket)
        self.counts.ends["left"] += 1
        if ticket in self.woken:
            self.woken.remove(ticket)

    def call(self) -> None:
        for ticket, verdict in self.throttle.called():
            del self.waiting[ticket]
            self.decide(ticket.demand, verdict)

    def resume(self) -> None:
        """Poll a waiter that was woken, or whose own timer expired."""
        with_wakeup = [ticket for ticket in self.waiting if ticket.on_ready is not None]
        tickets = self.woken or with_wakeup
        if tickets:
            ticket = self.random.choice(tickets)
            verdict = self.throttle.admission.verdicts.poll(ticket)
            if verdict is not None:
                del self.waiting[ticket]
                if ticket in self.woken:
                    self.woken.remove(ticket)
                self.decide(ticket.demand, verdict)

    def elapse(self) -> None:
        self.counts.elapse(self.random.expovariate(250.0))
        if self.random.random() < 0.02:
            self.throttle.gpu.utilization_pct = self.random.choice((50.0, 99.0))
            Throttle.tick(self.throttle)
        if self.random.random() < 0.02:
            self.counts.elapse(0.6)  # everybody's patience


@pytest.mark.parametrize(
    ("policy", "seed"), [pytest.param("concurrency", 1, marks=pytest.mark.slow), ("adaptive", 2)]
)
def test_counts_match_after_100_000_random_events(policy: str, seed: int) -> None:
    storm = SynchronousStorm(seed, policy)
    storm.run(52_000)
    assert storm.counts.ends["admitted"] > 5_000
    assert storm.counts.ends["refused"] > 2_000
    assert storm.counts.ends["left"] > 500
    storm.calm()
    storm.counts.check_counts()


def done(waiter: Waiter) -> bool:
    return waiter.task is not None and waiter.task.done()


class CancelledTasks:
    """Tasks of an event loop that are cancelled at random, in three ways."""

    def __init__(self, seed: int) -> None:
        self.counts = Counts(seed, "concurrency", slots=8)
        self.random = self.counts.random
        self.stops: list[tuple[Waiter, Callable[[], None]]] = []
        self.waiters: list[Waiter] = []

    async def run(self, tasks: int) -> None:
        draw = self.random
        while len(self.waiters) < tasks:
            for _ in range(draw.randrange(9)):
                waiter = Waiter(self.counts.throttle, self.counts.demand())
                self.waiters.append(waiter)
                self.stops.append((waiter, waiter.start(draw.choice(CANCELLATIONS), draw.randrange(30))))
            self.counts.elapse(draw.expovariate(100.0))
            await iterations(draw.randrange(4))
            self.stops = [(waiter, stop) for waiter, stop in self.stops if not done(waiter)]
            for _ in range(min(draw.randrange(3), len(self.stops))):
                in_queue = [one for one in self.stops if one[0].verdict is None]
                one = draw.choice(in_queue or self.stops)
                self.stops.remove(one)
                one[1]()
        for waiter in self.waiters:
            assert waiter.task is not None
            await asyncio.wait([waiter.task])

    def reckon(self) -> None:
        """A task without a verdict did not start, or left the queue."""
        counts = self.counts
        for waiter in self.waiters:
            if waiter.verdict is None:
                counts.ends["left"] += 1
            elif isinstance(waiter.verdict, Permit):
                counts.admitted(waiter.demand)
            else:
                counts.ends["refused"] += 1
        never_began = counts.ends["left"] - counts.throttle.snapshot().oddities["disconnected_in_queue"]
        assert never_began >= 0
        counts.ends["left"] -= never_began
        counts.requested -= never_began


async def test_counts_match_after_2500_random_cancellations() -> None:
    riders = CancelledTasks(3)
    await riders.run(2_500)
    riders.reckon()
    ends = riders.counts.ends
    assert min(ends["admitted"], ends["refused"], ends["left"]) > 100, ends
    riders.counts.check_counts()
