"""Waiting in the queue: order, wake-ups, timeouts, and verdicts."""

from __future__ import annotations

import asyncio
import math
import time

import anyio
import pytest

from autoglm_throttle import (
    Decision,
    Demand,
    Outcome,
    Permit,
    Priority,
    Reason,
    Rejection,
    Settings,
    Throttle,
)
from autoglm_throttle.limiting.concurrency_limiter import (
    AdaptiveConcurrencyLimiter,
    Ticket,
    TicketState,
)
from autoglm_throttle.limiting.work_class import SlotHolder
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from tests.admission.limited_throttle import (
    HIGH_RATES,
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    queued,
    rejection_for,
    remaining_state,
    ticket_for,
    warmed,
)
from tests.admission.waiter import QueuedTasks, let_tasks_run
from tests.loops import run

HIGH, MID, LOW = Priority
SHORT_SLO_S = 0.1
"""An objective with a queue timeout of 25 ms of real time."""


class TestOrder:
    """The order in which free slots are assigned."""

    def test_high_first_then_in_order_of_arrival(self, backend: str) -> None:
        async def scenario() -> None:
            throttle = warmed(limited_throttle())
            (running,) = permits_for(throttle)
            tasks = QueuedTasks(throttle)
            requested = [(LOW, "a"), (MID, "b"), (HIGH, "c"), (LOW, "d"), (HIGH, "e"), (MID, "f")]
            async with anyio.create_task_group() as group:
                await tasks.enqueue(group, *(Demand(priority, name) for priority, name in requested))
                assert not tasks.verdicts
                for turn, name in enumerate("cebfad", 1):
                    running.settle()
                    await let_tasks_run()
                    assert list(tasks.verdicts)[-1] == name
                    assert len(tasks.verdicts) == turn
                    verdict = tasks.verdicts[name]
                    assert isinstance(verdict, Permit)
                    running = verdict
            assert in_flight(throttle) == 1
            assert remaining_state(throttle) == NO_REMAINING_STATE

        run(backend, scenario)

    def test_a_newcomer_does_not_overtake(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        first = ticket_for(throttle, Demand(MID))
        second = ticket_for(throttle, Demand(MID))
        running.settle()
        assert (first.state, second.state) == (TicketState.CALLED, TicketState.WAITING)
        third = ticket_for(throttle, Demand(HIGH))
        ((_, permit),) = throttle.called()
        assert isinstance(permit, Permit)
        permit.settle()
        assert (second.state, third.state) == (TicketState.WAITING, TicketState.CALLED)

    def test_all_slots_that_are_free_are_given_at_once(self, backend: str) -> None:
        async def scenario() -> None:
            throttle = warmed(limited_throttle(3))
            running = permits_for(throttle, 3)
            tasks = QueuedTasks(throttle)
            async with anyio.create_task_group() as group:
                await tasks.enqueue(group, *(Demand(MID, name) for name in "abcd"))
                for permit in running:
                    permit.settle()
                await let_tasks_run()
                assert sorted(tasks.verdicts) == ["a", "b", "c"]
                permit_a = tasks.verdicts["a"]
                assert isinstance(permit_a, Permit)
                permit_a.settle()

        run(backend, scenario)

    def test_waiter_sleeps_until_its_wakeup(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A waiter polls its ticket once after the wait, and not before."""
        throttle = warmed(limited_throttle())
        looks: list[Ticket] = []
        original = throttle.admission.verdicts.poll

        def look(ticket: Ticket) -> Permit | Rejection | None:
            looks.append(ticket)
            return original(ticket)

        monkeypatch.setattr(throttle.admission.verdicts, "poll", look)

        async def scenario() -> None:
            (running,) = permits_for(throttle)
            tasks = QueuedTasks(throttle)
            async with anyio.create_task_group() as group:
                await tasks.enqueue(group, Demand(user="a"))
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                assert not looks
                running.settle()
            assert tasks.verdicts["a"].admitted
            assert len(looks) == 1

        run(backend, scenario)

    def test_request_without_a_slot_takes_none_and_waits_for_none(self) -> None:
        throttle = limited_throttle()
        permits_for(throttle)
        permit = permit_for(throttle, Demand(holds_slot=False))
        assert in_flight(throttle) == 1
        permit.settle()
        assert in_flight(throttle) == 1
        assert throttle.snapshot().active[MID] == 0
        rejected = limited_throttle(rate_mid_rps="1/s")
        permit_for(rejected, Demand(holds_slot=False))
        rejection_for(rejected, Demand(holds_slot=False))
        limiter = rejected.snapshot().concurrency
        assert limiter is not None
        assert (limiter.in_flight, limiter.waiting) == (0, (0, 0, 0))

    def test_a_user_limit_frees_no_slot_that_was_never_taken(self) -> None:
        throttle = limited_throttle(user_limit="1/minute")
        permit_for(throttle, Demand(user="u", holds_slot=False))
        assert rejection_for(throttle, Demand(user="u", holds_slot=False)).decision.reason is Reason.USER
        assert in_flight(throttle) == 0


class TestCall:
    """The verdict of a ticket that becomes ready."""

    async def test_queue_time_is_recorded_and_part_of_the_duration(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        task = asyncio.create_task(throttle.admit(Demand(MID, "u")))
        await let_tasks_run()
        throttle.clock.advance(0.2)
        running.settle()
        permit = await task
        assert isinstance(permit, Permit)
        assert permit.admitted_s - permit.arrived_s == pytest.approx(0.2)
        assert queued(throttle, MID) == pytest.approx((1, 0.2))
        throttle.clock.advance(0.1)
        permit.settle()
        assert throttle.snapshot().durations[MID].total_s == pytest.approx(0.3)

    def test_limiter_measures_only_the_time_in_flight(self) -> None:
        inside_s: list[float] = []

        class Watched(AdaptiveConcurrencyLimiter):
            def release(
                self, holder: SlotHolder, outcome: Outcome, now: float, client_error: bool = False
            ) -> None:
                inside_s.append(now - holder.started_s)
                super().release(holder, outcome, now, client_error=client_error)

        throttle = limited_throttle()
        throttle.admission.parts.settlement.limiter = Watched(
            ConcurrencySettings(inflight_start=1, inflight_floor=1), throttle.clock(), memory_target=0.92
        )
        warmed(throttle)
        inside_s.clear()
        (running,) = permits_for(throttle)
        ticket_for(throttle, Demand(MID))
        throttle.clock.advance(0.2)
        running.settle()
        ((_, permit),) = throttle.called()
        assert isinstance(permit, Permit)
        throttle.clock.advance(0.05)
        permit.settle()
        assert inside_s == [pytest.approx(0.2), pytest.approx(0.05)]

    async def test_limits_are_reported_as_of_the_call(self) -> None:
        throttle = warmed(limited_throttle(slo_s=20.0, user_limit="10/minute;3/second"))
        running = permit_for(throttle, Demand(user="u"))
        throttle.clock.advance(0.25)
        task = asyncio.create_task(throttle.admit(Demand(user="u", address="here")))
        await let_tasks_run()
        throttle.clock.advance(0.5)
        running.settle()
        permit = await task
        reported = {item.name: (item.remaining, round(item.reset_s, 6)) for item in permit.decision.limits}
        assert reported == {
            "user-1s": (1, 0.25),
            "user-60s": (8, 59.25),
            "address-1s": (29, 0.5),
            "address-60s": (99, 59.5),
        }
        assert permit.decision.policy == "user-1s"

    async def test_limit_due_for_reset_during_the_wait_is_reset(self) -> None:
        throttle = warmed(limited_throttle(slo_s=20.0, user_limit="3/second"))
        running = permit_for(throttle, Demand(user="u"))
        task = asyncio.create_task(throttle.admit(Demand(user="u")))
        await let_tasks_run()
        throttle.clock.advance(2.0)
        running.settle()
        assert (await task).decision.reset_after_s == 0.0

    async def test_without_a_user_limit_no_limits_are_reported(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        task = asyncio.create_task(throttle.admit(Demand()))
        await let_tasks_run()
        running.settle()
        assert (await task).decision == Decision(True, Reason.OK)


class TestQueueTimeout:
    """Waiters whose queue timeout expires."""

    def test_is_rejected_at_the_queue_timeout_and_not_before(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        assert ticket.max_wait_s == 0.5
        throttle.clock.advance(math.nextafter(ticket.deadline_s, 0.0) - throttle.clock())
        assert throttle.called() == []
        throttle.clock.advance(ticket.deadline_s - throttle.clock())
        ((_, rejection),) = throttle.called()
        assert isinstance(rejection, Rejection)
        decision = rejection.decision
        assert (decision.reason, decision.detail, decision.policy) == (Reason.QUEUE, "queue:timeout", "queue")
        assert decision.retry_after_s < math.inf
        assert throttle.called() == []

    def test_is_counted_once_and_was_never_active(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        for _ in range(3):
            ticket_for(throttle, Demand(MID))
        throttle.clock.advance(0.5)
        assert len(throttle.called()) == 3
        snapshot = throttle.snapshot()
        assert snapshot.requests[MID, "shed", Reason.QUEUE] == 3
        assert snapshot.requests[MID, "admitted", Reason.OK] == 0
        assert snapshot.active == {HIGH: 0, MID: 0, LOW: 1}
        assert queued(throttle, MID) == pytest.approx((3, 1.5))
        assert snapshot.oddities["disconnected_in_queue"] == 0

    def test_a_shorter_objective_of_its_own_makes_it_less_patient(self) -> None:
        throttle = warmed(limited_throttle(3))
        permits_for(throttle, 3)
        patience = [ticket_for(throttle, Demand(slo_s=slo_s)).max_wait_s for slo_s in (None, 1.0, 0.2)]
        assert patience == [0.5, 0.25, 0.05]
        throttle.clock.advance(0.05)
        assert len(throttle.called()) == 0  # the one in front still waits
        ticket = ticket_for(throttle, Demand(slo_s=0.2))
        throttle.clock.advance(0.05)
        assert throttle.admission.verdicts.poll(ticket) is not None

    def test_waiter_wakes_itself_at_the_queue_timeout(self, backend: str) -> None:
        async def scenario() -> None:
            throttle = Throttle(Settings(policy="concurrency", gpu="none", inflight_start=2, **HIGH_RATES))
            permits_for(throttle, 2)
            began_s = time.monotonic()
            rejection = await throttle.admit(Demand(slo_s=SHORT_SLO_S))
            assert not rejection.admitted
            assert rejection.decision.detail == "queue:timeout"
            waited_s = time.monotonic() - began_s
            assert remaining_state(throttle) == NO_REMAINING_STATE
            requests, queued_s = queued(throttle, MID)
            assert requests == 1
            assert SHORT_SLO_S / 4 <= queued_s <= waited_s

        run(backend, scenario)

    def test_waiter_expires_when_another_request_ends(self, backend: str) -> None:
        """The timer of the task counts real seconds and is not needed."""

        async def scenario() -> None:
            throttle = warmed(limited_throttle(slo_s=400.0))
            (running,) = permits_for(throttle)
            tasks = QueuedTasks(throttle)
            async with anyio.create_task_group() as group:
                await tasks.enqueue(group, Demand(user="a"))
                throttle.clock.advance(100.0)
                await tasks.enqueue(group, Demand(user="b"))
                running.settle()
                await let_tasks_run()
            assert tasks.verdicts["a"].decision.detail == "queue:timeout"
            assert tasks.verdicts["b"].admitted
            assert queued(throttle, MID) == (2, 100.0)

        run(backend, scenario)


class TestSnapshot:
    """The queue in the snapshot."""

    async def test_snapshot_counts_queued_requests_by_priority(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        tickets = [ticket_for(throttle, Demand(priority)) for priority in (HIGH, LOW, LOW)]
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert (limiter.limit, limiter.in_flight, limiter.waiting) == (1.0, 1, (1, 0, 2))
        assert limiter.service_rps == pytest.approx(100.0, rel=0.05)
        assert limiter.memory_cap == math.inf
        for ticket in tickets:
            throttle.leave(ticket)
        limiter = throttle.snapshot().concurrency
        assert limiter is not None
        assert limiter.waiting == (0, 0, 0)

    def test_policy_without_a_limiter_shows_none(self) -> None:
        throttle = limited_throttle(policy="fixed", inflight_max=0, inflight_start=64)
        permits_for(throttle)
        assert throttle.snapshot().concurrency is None
        assert "demand" not in throttle.snapshot().pressure

    def test_the_pressure_of_the_demand_is_a_term(self) -> None:
        throttle = limited_throttle(4)
        permits_for(throttle, 3)
        assert throttle.snapshot().pressure["demand"] == 0.75

    def test_repr_shows_waiting_requests(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID, "u"))
        assert repr(ticket) == "Ticket(WAITING, queue 2, Demand(mid, user='u', cost=1))"
        assert repr(throttle) == (
            "Throttle(concurrency, factor=1.00 (policy), telemetry=starting, "
            "rates=1e+06/1e+06/1e+06/s, active=1)"
        )
