"""The gate as a state machine: whatever comes in whatever order, no slot or place is lost or given twice."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autoglm_throttle.limiting.concurrency_limiter import (
    Ticket,
    TicketState,
)
from autoglm_throttle.limiting.work_class import PAUSED, UNCOUNTED
from autoglm_throttle.types import Decision, Demand, Outcome, Priority, Reason
from tests.limiting.measured_limiters import Running, limiter

WAITING, CALLED, DROPPED, LEFT = TicketState
OUTCOMES_OF_CALLS = {(WAITING, CALLED), (WAITING, DROPPED), (WAITING, LEFT), (CALLED, LEFT)}

ENDS = (Outcome.SUCCESS, Outcome.SUCCESS, Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL)

steps = st.one_of(
    st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0, 20.0]), st.floats(0.0, 2.0), st.sampled_from([-0.01, -3.0])
)
priorities = st.sampled_from(list(Priority))
objectives = st.sampled_from([None, None, 0.05, 0.5, 8.0])
names = st.sampled_from(["", "", "predict", "health"])


class LimiterMachine(RuleBasedStateMachine):
    """The books of a careful throttle, compared with the gate's own after each step."""

    @initialize(
        start=st.integers(1, 12),
        most=st.sampled_from([0, 0, 3, 20]),
        queue_max=st.sampled_from([0, 3, 1024]),
        share=st.sampled_from([0.0, 0.03, 0.2]),
        slo_s=st.sampled_from([0.2, 2.0, 60.0, None]),
        paused_max=st.sampled_from([2, 1024]),
    )
    def open(
        self, start: int, most: int, queue_max: int, share: float, slo_s: float | None, paused_max: int
    ) -> None:
        self.now = self.latest = 1000.0
        self.most = most or math.inf
        self.limiter = limiter(
            self.now,
            inflight_start=start,
            inflight_floor=min(start, 2),
            inflight_max=most,
            queue_max=queue_max,
            min_share=share,
            slo_s=slo_s,
            paused_max=paused_max,
        )
        self.paused_max = paused_max
        self.area = 0.0
        self.running: list[Running] = []
        self.lines: list[list[Ticket]] = [[], [], [], []]
        self.called: list[Ticket] = []
        self.ended: list[Ticket] = []
        self.states: dict[Ticket, TicketState] = {}
        self.limit, self.peak = self.limiter.limit, 0
        self.opened_s = self.limiter.period.opened_s

    # --- what the books know ---

    def paused(self) -> int:
        return sum(one.slot == PAUSED for one in self.running)

    def room(self) -> int:
        if self.paused() >= self.paused_max:
            return 0
        memory = self.limiter.adaptive.memory.requests
        return int(min(self.limiter.limit, self.most, max(0.0, memory - self.paused())))

    def free(self) -> bool:
        """Asked after a call that gave a slot: the slot was there."""
        return self.limiter.in_flight <= self.room()

    def take_in(self, ticket: Ticket) -> None:
        assert ticket not in self.states
        assert ticket.arrived_s == self.latest
        assert ticket.max_wait_s > 0
        self.states[ticket] = ticket.state
        if ticket.state is CALLED:
            assert ticket.queue_index == 0
            assert not self.lines[0], "nobody is called before those who stand before it"
            assert self.free()
            self.called.append(ticket)
        else:
            assert ticket.state is WAITING
            self.lines[ticket.queue_index].append(ticket)

    def move(self, ticket: Ticket, books: list[Ticket], state: TicketState) -> None:
        assert (self.states[ticket], state) in OUTCOMES_OF_CALLS
        assert ticket.state is state
        self.states[ticket] = state
        books.remove(ticket)

    def serve(self) -> None:
        ended = list(self.limiter.pop_ready(self.now))
        last_lane = 0
        for ticket in ended:
            assert ticket.queue_index >= last_lane, "lines are served in order"
            last_lane = ticket.queue_index
            assert self.lines[ticket.queue_index][0] is ticket, "first come, first served"
            late = self.latest >= ticket.deadline_s
            self.move(ticket, self.lines[ticket.queue_index], DROPPED if late else CALLED)
            if not late:
                assert ticket.called_s == self.latest
                assert self.free()
                self.called.append(ticket)
        for line in self.lines:
            if line:
                assert self.latest < line[0].deadline_s
                assert self.limiter.in_flight >= self.room(), "nobody waits before a free slot"

    # --- what can happen ---

    @rule(step=steps)
    def time_passes(self, step: float) -> None:
        self.now += step
        if self.now > self.latest:
            self.area += self.limiter.in_flight * (self.now - self.latest)
            self.latest = self.now
        self.limiter.close_period(self.now)
        if self.limiter.period.opened_s != self.opened_s:
            self.area = 0.0
        assert self.limiter.in_flight * self.latest - self.limiter.period.starts_s == pytest.approx(
            self.area, abs=1e-6
        )

    @rule(priority=priorities, slo_s=objectives, name=names, serve=st.booleans())
    def arrive(self, priority: Priority, slo_s: float | None, name: str, serve: bool) -> None:
        demand, ahead = Demand(priority, slo_s=slo_s), sum(map(len, self.lines[: priority + 2]))
        kind = self.limiter.work_classes[name]
        slot = self.limiter.try_acquire(demand, kind, self.now)
        if slot:
            self.running.append(Running(kind, slot, self.latest))
            if slot == UNCOUNTED:
                assert kind.negligible
                assert kind.in_flight <= max(2.0, 0.05 * self.limiter.limit) + 1
            else:
                assert not ahead
                assert self.free()
        else:
            assert ahead or self.limiter.in_flight >= self.room()
            got = self.limiter.enqueue(demand, kind, self.now)
            if self.paused() >= self.paused_max:
                assert isinstance(got, Decision)
                assert got.detail == "queue:paused"
            if isinstance(got, Ticket):
                self.take_in(got)
            else:
                self.check_rejection(got)
        if serve:
            self.serve()

    @rule(priority=priorities, slo_s=objectives)
    def be_rescued(self, priority: Priority, slo_s: float | None) -> None:
        self.limiter.record_arrival(priority, self.now)
        kind = self.limiter.work_classes[""]
        ticket = self.limiter.enqueue_reserved(Demand(priority, slo_s=slo_s), kind, self.now)
        if ticket is not None:
            assert priority is not Priority.HIGH
            self.take_in(ticket)

    @precondition(lambda self: self.running)
    @rule(
        index=st.integers(0, 10**6),
        outcome=st.sampled_from(Outcome),
        client_error=st.sampled_from([False, False, True]),
        serve=st.booleans(),
    )
    def finish(self, index: int, outcome: Outcome, client_error: bool, serve: bool) -> None:
        one = self.running.pop(index % len(self.running))
        self.limiter.release(one, outcome, self.now, client_error=client_error)
        assert not one.slot
        if serve:
            self.serve()

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 10**6), times=st.integers(1, 2))
    def pause(self, index: int, times: int) -> None:
        one = self.running[index % len(self.running)]
        held = one.slot
        for _ in range(times):
            self.limiter.pause(one, self.now)
        assert one.slot == (PAUSED if held != UNCOUNTED else UNCOUNTED)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 10**6), times=st.integers(1, 2))
    def resume(self, index: int, times: int) -> None:
        one = self.running[index % len(self.running)]
        held, in_flight = one.slot, self.limiter.in_flight
        for _ in range(times):
            self.limiter.resume(one, self.now)
        assert self.limiter.in_flight == in_flight + (held == PAUSED), "at once, even above the limit"
        assert one.slot != PAUSED

    @precondition(lambda self: self.called)
    @rule(index=st.integers(0, 10**6))
    def begin(self, index: int) -> None:
        ticket = self.called.pop(index % len(self.called))
        assert ticket.called_s is not None
        self.running.append(Running(ticket.work_class, ticket.slot, ticket.called_s))
        del self.states[ticket]  # from now on it is a request in flight like any other

    @precondition(lambda self: self.states)
    @rule(index=st.integers(0, 10**6), serve=st.booleans())
    def leave(self, index: int, serve: bool) -> None:
        ticket = list(self.states)[index % len(self.states)]
        self.limiter.cancel(ticket, self.now)
        if self.states[ticket] is WAITING:
            self.move(ticket, self.lines[ticket.queue_index], LEFT)
        elif self.states[ticket] is CALLED:
            self.move(ticket, self.called, LEFT)
        if serve:
            self.serve()

    @precondition(lambda self: self.states)
    @rule(index=st.integers(0, 10**6))
    def timer(self, index: int) -> None:
        ticket = list(self.states)[index % len(self.states)]
        over = self.states[ticket] is WAITING and self.latest >= ticket.deadline_s
        assert self.limiter.expire(ticket, self.now) is over
        if over:
            self.move(ticket, self.lines[ticket.queue_index], DROPPED)
            self.check_rejection(self.limiter.rejection(ticket, self.now))

    @rule(ratio=st.one_of(st.none(), st.floats(0.0, 1.0)))
    def sample(self, ratio: float | None) -> None:
        self.limiter.update_memory(ratio)
        self.serve()
        waiting = any(self.lines)
        evidence = self.limiter.report()
        assert evidence.confirmed or not waiting
        assert evidence.in_flight == self.limiter.in_flight

    @rule(priority=st.sampled_from(Priority))
    def dry_run(self, priority: Priority) -> None:
        kind = self.limiter.work_classes[""]
        slot = self.limiter.occupy_over_limit(Demand(priority), kind)
        self.running.append(Running(kind, slot, self.latest))

    @rule()
    def look(self) -> None:
        view = self.limiter.view(self.now)
        assert sum(view.waiting) == self.limiter.waiting
        assert 1.0 <= view.limit <= view.memory_cap
        assert view.paused == self.paused()
        assert view.slo_s > 0.0
        assert view.retry_backlog_s <= 60.0
        assert view.pressure >= 0.0

    def check_rejection(self, decision: Decision) -> None:
        assert not decision.allowed
        assert decision.reason is Reason.QUEUE
        assert decision.detail.startswith("queue:")
        assert 0.0 <= decision.retry_after_s < math.inf, decision
        assert decision.limit == self.room()

    # --- what is always so ---

    @invariant()
    def nothing_is_lost(self) -> None:
        counted = sum(one.slot > PAUSED for one in self.running)
        assert self.limiter.in_flight == counted + len(self.called)
        assert self.limiter.paused == self.paused()
        assert self.limiter.capacity == self.room()
        held = Counter(one.work_class for one in self.running)
        held.update(ticket.work_class for ticket in self.called)
        assert all(kind.in_flight == number for kind, number in held.items())
        assert all(kind.in_flight == held[kind] for kind in self.limiter.work_classes.all())
        assert self.limiter.waiting == sum(map(len, self.lines))
        assert all(ticket.state is state for ticket, state in self.states.items())

    @invariant()
    def the_limit_moves_in_steps(self) -> None:
        limit, opened_s = self.limiter.limit, self.limiter.period.opened_s
        assert limit >= 1.0
        if opened_s == self.opened_s:
            assert limit == self.limit
        else:
            cap = min(self.limiter.adaptive.memory.requests, self.most)
            assert limit <= max(1.0, cap)
            assert min(0.7 * self.limit, cap, 1.0) - 1e-9 <= limit <= 2 * self.limit + 1e-9
            # A limit that was not reached falls relative to the peak in flight.
            lowest = 0.7 * min(self.limit, self.peak or math.inf)
            assert limit >= min(lowest, max(1.0, cap)) - 1e-9
        self.limit, self.opened_s, self.peak = limit, opened_s, self.limiter.period.peak

    def teardown(self) -> None:
        if not hasattr(self, "limiter"):
            return
        for ticket in self.states:
            self.limiter.cancel(ticket, self.now)
        for one in self.running:
            self.limiter.release(one, Outcome.SUCCESS, self.now)
        assert (self.limiter.in_flight, self.limiter.paused, self.limiter.waiting) == (0, 0, 0)
        assert not any(one.in_flight for one in self.limiter.work_classes.all())
        assert not any(queue.tickets for queue in self.limiter.queues.all)


TestLimiterMachine = LimiterMachine.TestCase
TestLimiterMachine.settings = settings(stateful_step_count=60)


class Crowd:
    """Requests that come, wait, are cancelled and are served, at random.

    Args:
        seed: of the random numbers.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limiter = limiter(inflight_start=8, inflight_max=8, min_share=0.2)
        self.now = 0.0
        self.tickets: list[Ticket] = []
        self.running: list[Running] = []
        self.kind = self.limiter.work_classes["predict"]
        self.cancelled = 0

    def step(self) -> None:
        chance = self.random.random()
        self.now += chance * 0.001
        if chance < 0.4:
            self.arrive()
        elif chance < 0.55:
            self.cancel()
        elif chance < 0.6:
            self.time_out()
        elif chance < 0.8:
            self.begin()
        else:
            self.finish()
        if self.random.random() < 0.8:
            self.limiter.pop_ready(self.now)

    def arrive(self) -> None:
        demand = Demand(Priority(self.random.randrange(3)))
        if self.random.random() < 0.2:  # the shared budget has refused it
            rescued = self.limiter.enqueue_reserved(demand, self.kind, self.now)
            if rescued is not None:
                self.tickets.append(rescued)
            return
        slot = self.limiter.try_acquire(demand, self.kind, self.now)
        if slot:
            self.running.append(Running(self.kind, slot, self.now))
            return
        got = self.limiter.enqueue(demand, self.kind, self.now)
        if isinstance(got, Ticket):
            self.tickets.append(got)

    def pick(self) -> Ticket | None:
        return self.tickets.pop(self.random.randrange(len(self.tickets))) if self.tickets else None

    def cancel(self) -> None:
        ticket = self.pick()
        if ticket is not None:
            for _ in range(self.random.choice([1, 1, 2])):
                self.limiter.cancel(ticket, self.now)
            self.cancelled += 1

    def time_out(self) -> None:
        ticket = self.pick()
        if ticket is not None and not self.limiter.expire(ticket, self.now):
            self.tickets.append(ticket)

    def begin(self) -> None:
        ticket = self.pick()
        if ticket is None:
            return
        if ticket.state is CALLED:
            assert ticket.called_s is not None
            self.running.append(Running(ticket.work_class, ticket.slot, ticket.called_s))
        elif ticket.state is WAITING:
            self.tickets.append(ticket)

    def finish(self) -> None:
        if self.running:
            one = self.running.pop(self.random.randrange(len(self.running)))
            self.limiter.release(one, self.random.choice(ENDS), self.now)

    def go_home(self) -> None:
        for ticket in self.tickets:
            self.limiter.cancel(ticket, self.now)
        for one in self.running:
            self.limiter.release(one, Outcome.NEUTRAL, self.now)

    def held(self) -> int:
        return len(self.running) + sum(ticket.state is CALLED for ticket in self.tickets)


@pytest.mark.slow
@pytest.mark.untraced
def test_100k_cancellations_leak_no_slot_and_no_place() -> None:
    chance, tested, now, cancelled, called = (
        random.Random(7),
        limiter(inflight_start=8),
        0.0,
        0,
        0,
    )
    demands, kind = [Demand(priority) for priority in Priority], tested.work_classes[""]
    running: list[Running] = []

    def enter(demand: Demand) -> bool:
        slot = tested.try_acquire(demand, kind, now)
        if slot:
            running.append(Running(kind, slot, now))
        return bool(slot)

    assert all(enter(demands[0]) for _ in range(8))
    while cancelled < 100_000:
        now += 0.01
        arrivals = [(demand, enter(demand)) for demand in chance.choices(demands, k=20)]
        got = [tested.enqueue(demand, kind, now) for demand, entered in arrivals if not entered]
        tested.release(running.pop(chance.randrange(len(running))), Outcome.SUCCESS, now)
        called += len(tested.pop_ready(now))
        tickets = [ticket for ticket in got if isinstance(ticket, Ticket)]
        chance.shuffle(tickets)
        for ticket in tickets:
            tested.cancel(ticket, now)
        cancelled += len(tickets)
        tested.pop_ready(now)
        assert (tested.in_flight, tested.waiting) == (len(running), 0)
        enter(demands[1])
    assert called > 1000, "some left with the slot they had just been given"
    assert not any(queue.tickets for queue in tested.queues.all)


def test_random_arrivals_and_cancellations_leak_nothing() -> None:
    crowd = Crowd(seed=7)
    for _ in range(20_000):
        crowd.step()
    assert crowd.cancelled > 2000
    assert crowd.limiter.in_flight == crowd.held()
    crowd.go_home()
    assert (crowd.limiter.in_flight, crowd.limiter.waiting) == (0, 0)
    assert not any(queue.tickets for queue in crowd.limiter.queues.all)
    assert crowd.limiter.pop_ready(crowd.now + 99.0) == ()
    assert crowd.limiter.try_acquire(Demand(Priority.MID), crowd.kind, crowd.now + 99.0)
