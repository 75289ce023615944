"""Waiters may be cancelled at any instant, in any way, and leave no state behind."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from autoglm_throttle import Demand, Outcome, Permit, Priority, Reason, Ticket
from autoglm_throttle.admission import verdicts as admission_module
from autoglm_throttle.limiting.concurrency_limiter import TicketState
from autoglm_throttle.testing import ManualThrottle
from tests.admission.limited_throttle import (
    NO_REMAINING_STATE,
    in_flight,
    limited_throttle,
    permits_for,
    remaining_state,
    ticket_for,
    warmed,
)
from tests.admission.waiter import CANCELLATIONS, Waiter, iterations, let_tasks_run
from tests.loops import run

HIGH, MID, LOW = Priority
LATER = range(5)
"""Iterations of the loop between two events; after 4 nothing is pending."""


class Stopped(BaseException):
    """An unexpected exception, such as KeyboardInterrupt."""


def untouched(throttle: ManualThrottle, user: str) -> bool:
    """Return whether the user limit and the mid tokens are unspent."""
    bucket = throttle.admission.parts.buckets.all[MID]
    full = bucket.tokens(throttle.clock()) == bucket.burst
    permit = throttle.try_admit(Demand(HIGH, user, holds_slot=False))
    return full and not isinstance(permit, Ticket) and permit.decision.remaining == 9


def one_slot() -> tuple[ManualThrottle, Permit]:
    throttle = warmed(limited_throttle(user_limit="10/minute", slo_s=240.0))
    return throttle, permits_for(throttle)[0]


class TestEveryMoment:
    """One waiter and its end, before, at and after its admission."""

    @pytest.mark.parametrize("cancellation", CANCELLATIONS)
    async def test_cancelled_in_the_queue(self, cancellation: str) -> None:
        throttle, running = one_slot()
        first, second = Waiter(throttle, Demand(MID, "u")), Waiter(throttle, Demand(LOW, "v"))
        stop, _ = first.start(cancellation), second.start("task")
        await let_tasks_run()
        stop()
        await let_tasks_run()
        assert first.verdict is None
        assert untouched(throttle, "u")
        assert throttle.admission.parts.settlement.limiter.waiting == 1
        running.settle()
        await let_tasks_run()
        assert isinstance(second.verdict, Permit)
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("cancellation", CANCELLATIONS)
    @pytest.mark.parametrize("later", LATER)
    async def test_called_and_not_yet_resumed(self, cancellation: str, later: int) -> None:
        """An assigned but unclaimed slot goes to the next waiter."""
        throttle, running = one_slot()
        first, second = Waiter(throttle, Demand(MID, "u")), Waiter(throttle, Demand(LOW, "v"))
        stop, _ = first.start(cancellation, 100), second.start("task")
        await let_tasks_run()
        running.settle()
        await iterations(later)
        stop()
        await let_tasks_run()
        if first.verdict is None:
            assert untouched(throttle, "u")
            assert throttle.snapshot().oddities["disconnected_in_queue"] == 1
        else:
            assert (later, cancellation) != (0, "task")
            assert isinstance(first.verdict, Permit)
            assert first.verdict.settled
        assert isinstance(second.verdict, Permit)
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("cancellation", CANCELLATIONS)
    @pytest.mark.parametrize("later", LATER)
    async def test_cancelled_and_then_called(self, cancellation: str, later: int) -> None:
        throttle, running = one_slot()
        first = Waiter(throttle, Demand(MID, "u"))
        stop = first.start(cancellation)
        await let_tasks_run()
        stop()
        await iterations(later)
        running.settle()
        await let_tasks_run()
        assert first.verdict is None
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE

    async def test_before_the_task_has_begun(self) -> None:
        throttle, _ = one_slot()
        task = asyncio.create_task(throttle.admit(Demand(MID, "u")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("later", LATER)
    async def test_expired_and_cancelled_in_one_turn(self, later: int) -> None:
        throttle, running = one_slot()
        first = Waiter(throttle, Demand(MID, "u"))
        stop = first.start("task")
        await let_tasks_run()
        throttle.clock.advance(60.0)
        running.settle()
        await iterations(later)
        stop()
        await let_tasks_run()
        rejected = throttle.snapshot().requests[MID, "shed", Reason.QUEUE]
        assert rejected == (first.verdict is not None)
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 0
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("later", LATER)
    def test_under_trio(self, later: int) -> None:
        async def scenario() -> None:
            throttle, running = one_slot()
            first = Waiter(throttle, Demand(MID, "u"))
            async with anyio.create_task_group() as group:
                group.start_soon(first.request_in_scope)
                await let_tasks_run()
                running.settle()
                await iterations(later)
                first.scope.cancel()
            assert first.verdict is None or first.verdict.admitted
            assert in_flight(throttle) == 0
            assert remaining_state(throttle) == NO_REMAINING_STATE
            if first.verdict is None:
                assert untouched(throttle, "u")

        run("trio", scenario)

    def test_a_group_that_fails_takes_its_waiters_along(self, backend: str) -> None:
        async def scenario() -> None:
            throttle, _ = one_slot()

            async def fail() -> None:
                async with anyio.create_task_group() as group:
                    for priority in Priority:
                        group.start_soon(throttle.admit, Demand(priority, "u"))
                        await let_tasks_run()
                    raise ValueError("another task has failed")

            with pytest.raises(BaseExceptionGroup):
                await fail()
            assert untouched(throttle, "u")
            assert remaining_state(throttle) == NO_REMAINING_STATE

        run(backend, scenario)


class TestListener:
    """The task that watches for a disconnect."""

    @pytest.mark.parametrize("error", [Stopped(), ValueError("broken"), TimeoutError("its own")])
    @pytest.mark.parametrize("called", [False, True])
    def test_its_error_is_the_callers_and_the_place_is_given_up(
        self, backend: str, error: BaseException, called: bool
    ) -> None:
        async def scenario() -> None:
            throttle, running = one_slot()
            ticket = ticket_for(throttle, Demand(MID, "u"))

            async def leaves() -> None:
                await anyio.lowlevel.checkpoint()
                if called:
                    running.settle()
                raise error

            with pytest.raises(type(error)):
                await throttle.wait(ticket, leaves)
            assert ticket.state is TicketState.CANCELLED
            assert untouched(throttle, "u")
            assert in_flight(throttle) == (not called)
            assert remaining_state(throttle) == NO_REMAINING_STATE

        run(backend, scenario)

    def test_a_real_interrupt_ends_the_loop_and_leaks_nothing(self) -> None:
        throttle, _ = one_slot()

        async def scenario() -> None:
            async def leaves() -> None:
                raise KeyboardInterrupt

            others = [asyncio.create_task(throttle.admit(Demand(LOW, "u"))) for _ in range(3)]
            await let_tasks_run()
            assert others
            await throttle.wait(ticket_for(throttle, Demand(MID, "u")), leaves)

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(scenario())
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 1
        assert remaining_state(throttle) == NO_REMAINING_STATE

    @pytest.mark.parametrize("called", [False, True])
    def test_a_client_that_leaves_gives_its_place_up(self, backend: str, called: bool) -> None:
        async def scenario() -> None:
            throttle, running = one_slot()
            ticket = ticket_for(throttle, Demand(MID, "u"))

            async def leaves() -> None:
                await anyio.lowlevel.checkpoint()
                if called:
                    with anyio.CancelScope(shield=True):
                        running.settle()
                        await iterations(3)

            verdict = await throttle.wait(ticket, leaves)
            if isinstance(verdict, Permit):
                assert called
                verdict.settle(Outcome.NEUTRAL)
            else:
                assert verdict is None
                assert untouched(throttle, "u")
            assert in_flight(throttle) == (not called)
            assert remaining_state(throttle) == NO_REMAINING_STATE

        run(backend, scenario)

    async def test_without_a_wakeup_the_ticket_is_cancelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_wakeup() -> None:
            raise RuntimeError("which loop is this?")

        owner, _ = one_slot()
        monkeypatch.setattr(admission_module, "new_wakeup", no_wakeup)
        with pytest.raises(RuntimeError, match="which loop"):
            await owner.admit(Demand(MID, "u"))
        assert untouched(owner, "u")
        assert remaining_state(owner) == NO_REMAINING_STATE
