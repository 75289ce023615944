"""Tickets of callers without an event loop, of several loops and of several threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import anyio
import pytest

from autoglm_throttle import (
    Demand,
    Permit,
    Priority,
    Reason,
    Rejection,
    Settings,
    Throttle,
)
from autoglm_throttle.admission import verdicts as admission_module
from autoglm_throttle.limiting.concurrency_limiter import TicketState
from tests.admission.demands import DEADLINE_S
from tests.admission.limited_throttle import (
    HIGH_RATES,
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permit_for,
    permits_for,
    queued,
    remaining_state,
    ticket_for,
    warmed,
)
from tests.admission.waiter import QueuedTasks, let_tasks_run
from tests.loops import BACKENDS, run

HIGH, MID, LOW = Priority


class TestSynchronousFace:
    """The queue for callers without an event loop."""

    def test_ticket_is_returned_once(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        assert throttle.called() == []
        running.settle()
        ((same, permit),) = throttle.called()
        assert same is ticket
        assert isinstance(permit, Permit)
        assert throttle.called() == []
        throttle.leave(ticket)
        assert in_flight(throttle) == 1
        permit.settle()
        assert in_flight(throttle) == 0

    def test_cancelled_after_the_call_calls_the_next(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        first, second = (ticket_for(throttle, Demand(MID)) for _ in range(2))
        running.settle()
        throttle.clock.advance(0.1)
        throttle.leave(first)
        assert (first.state, second.state) == (TicketState.CANCELLED, TicketState.CALLED)
        assert [ticket for ticket, _ in throttle.called()] == [second]
        assert throttle.snapshot().oddities["disconnected_in_queue"] == 1
        assert queued(throttle, MID) == pytest.approx((2, 0.1))

    def test_cancelled_in_the_queue_records_its_queue_time(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        throttle.clock.advance(0.3)
        throttle.leave(ticket)
        throttle.leave(ticket)
        assert queued(throttle, MID) == pytest.approx((1, 0.3))
        assert throttle.snapshot().oddities["disconnected_in_queue"] == 1

    def test_cancelled_after_expiry_is_not_returned(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        throttle.clock.advance(0.5)
        throttle.admission.parts.settlement.call_ready(throttle.clock())
        throttle.leave(ticket)
        assert throttle.called() == []
        assert throttle.snapshot().requests[MID, "shed", Reason.QUEUE] == 0

    async def test_ticket_may_be_awaited_after_its_call(self) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        running.settle()
        permit = await throttle.wait(ticket)
        assert isinstance(permit, Permit)
        assert remaining_state(throttle) == NO_REMAINING_STATE
        assert throttle.called() == []

    async def test_called_while_registering_its_wakeup_is_called_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Any allocation may let the garbage collector end another request."""
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)

        def settling_wakeup() -> Callable[[], None]:
            running.settle()
            return lambda: None

        monkeypatch.setattr(admission_module, "new_wakeup", settling_wakeup)
        permit = await throttle.wait(ticket_for(throttle, Demand(MID)))
        assert isinstance(permit, Permit)
        assert remaining_state(throttle) == NO_REMAINING_STATE
        assert throttle.called() == []

    async def test_ticket_may_be_awaited_after_expiry(self) -> None:
        throttle = warmed(limited_throttle())
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        throttle.clock.advance(0.5)
        throttle.admission.parts.settlement.call_ready(throttle.clock())
        rejection = await throttle.wait(ticket)
        assert isinstance(rejection, Rejection)
        assert rejection.decision.detail == "queue:timeout"
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("how", ["left", "handed out"])
    async def test_finished_ticket_cannot_be_awaited(self, how: str) -> None:
        throttle = warmed(limited_throttle())
        (running,) = permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID))
        if how == "left":
            throttle.leave(ticket)
        else:
            running.settle()
            assert len(throttle.called()) == 1
        with pytest.raises(ValueError, match="was cancelled or already returned"):
            await throttle.wait(ticket)
        assert in_flight(throttle) == 1

    async def test_cancelled_during_a_wait_is_refunded_once(self) -> None:
        throttle = warmed(limited_throttle(rate_mid_rps="10/s"))
        permits_for(throttle)
        ticket = ticket_for(throttle, Demand(MID, cost=4.0))
        permit_for(throttle, Demand(MID, cost=4.0, holds_slot=False))
        task = asyncio.create_task(throttle.wait(ticket))
        await let_tasks_run()
        throttle.leave(ticket)
        assert ticket.on_ready is not None
        ticket.on_ready()
        with pytest.raises(ValueError, match="was cancelled or already returned"):
            await task
        assert throttle.snapshot().tokens[MID] == pytest.approx(6.0)
        assert throttle.snapshot().oddities["disconnected_in_queue"] == 1


class TestThreads:
    """Waiters in several event loops, and requests that end in threads without one."""

    def test_two_loops_in_two_threads_wake_each_other(self) -> None:
        """Each loop alternately holds the slot for which the other one waits."""
        throttle = Throttle(
            Settings(policy="concurrency", gpu="none", inflight_start=2, slo_s=240.0, **HIGH_RATES)
        )
        iterations: list[str] = []
        rounds = 20

        async def play(name: str) -> None:
            for _ in range(rounds):
                verdict = await throttle.admit(Demand(HIGH, name))
                assert isinstance(verdict, Permit)
                with verdict:
                    iterations.append(name)
                    await anyio.lowlevel.checkpoint()

        async def players(name: str) -> None:
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(play, name)

        threads = [
            threading.Thread(
                target=run, args=(backend, lambda backend=backend: players(backend)), daemon=True
            )
            for backend in BACKENDS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert sorted(iterations) == ["asyncio"] * 2 * rounds + ["trio"] * 2 * rounds
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("other", BACKENDS)
    def test_a_waiter_is_woken_by_a_loop_of_another_thread(self, backend: str, other: str) -> None:
        throttle = warmed(limited_throttle(slo_s=240.0))
        (running,) = permits_for(throttle)
        is_waiting, verdicts = threading.Event(), []

        async def theirs() -> None:
            ticket = ticket_for(throttle, Demand(MID))
            is_waiting.set()
            verdicts.append(await throttle.wait(ticket))

        async def ours() -> None:
            assert is_waiting.wait(DEADLINE_S)
            running.settle()

        thread = threading.Thread(target=run, args=(other, theirs), daemon=True)
        thread.start()
        run(backend, ours)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        assert [type(verdict) for verdict in verdicts] == [Permit]

    def test_end_in_a_thread_without_a_loop_wakes_the_next(self, backend: str) -> None:
        async def scenario() -> None:
            throttle = warmed(limited_throttle(slo_s=240.0))
            (running,) = permits_for(throttle)
            tasks = QueuedTasks(throttle)
            async with anyio.create_task_group() as group:
                await tasks.enqueue(group, Demand(user="a"))
                await anyio.to_thread.run_sync(running.settle)
            assert tasks.verdicts["a"].admitted

        run(backend, scenario)

    def test_waiter_of_a_blocked_loop_is_woken_when_it_resumes(self) -> None:
        throttle = warmed(limited_throttle(slo_s=240.0))
        (running,) = permits_for(throttle)
        loop = asyncio.new_event_loop()
        try:
            task = loop.create_task(throttle.admit(Demand(MID)))
            loop.run_until_complete(let_tasks_run())
            running.settle()
            permit = loop.run_until_complete(asyncio.wait_for(task, DEADLINE_S))
            assert isinstance(permit, Permit)
        finally:
            loop.close()

    def test_waiter_of_a_closed_loop_returns_its_slot(self) -> None:
        throttle = warmed(limited_throttle(slo_s=240.0))
        (running,) = permits_for(throttle)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # a pending task is destroyed: on purpose
        task = loop.create_task(throttle.admit(Demand(HIGH)))
        loop.run_until_complete(let_tasks_run())
        loop.close()
        second = ticket_for(throttle, Demand(MID))
        running.settle()
        assert throttle.called() == []
        del task, loop
        gc.collect()
        assert second.state is TicketState.CALLED
        assert throttle.snapshot().oddities["disconnected_in_queue"] == 1
        throttle.leave(second)
        assert in_flight(throttle) == 0
