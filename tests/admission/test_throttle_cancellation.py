"""Whoever waits may be cancelled at any moment, in any way, and leaves nothing behind."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from autoglm_throttle import Demand, Outcome, Permit, Priority, Reason, Ticket
from autoglm_throttle.admission import controller as admission_module
from autoglm_throttle.limiting.concurrency_limiter import TicketState
from autoglm_throttle.testing import ManualThrottle
from tests.admission.gated_throttle import NOTHING, gated, held, in_flight, left_over, ticket_for, warmed
from tests.admission.waiter import WAYS, Waiter, quiet, turns
from tests.loops import run

HIGH, MID, LOW = Priority
LATER = range(5)
"""So many turns of the loop between two events: 0 is one breath, and after 4 nothing is pending."""


class Stopped(BaseException):
    """An exception that nobody expects, as a KeyboardInterrupt."""


def untouched(throttle: ManualThrottle, user: str) -> bool:
    """Whether nothing of a user's limit and of the mid tokens has been spent."""
    bucket = throttle.admission.parts.buckets.all[MID]
    full = bucket.tokens(throttle.clock()) == bucket.burst
    permit = throttle.try_admit(Demand(HIGH, user, holds_slot=False))
    return full and not isinstance(permit, Ticket) and permit.decision.remaining == 9


def one_slot() -> tuple[ManualThrottle, Permit]:
    throttle = warmed(gated(user_limit="10/minute", slo_s=240.0))
    return throttle, held(throttle)[0]


class TestEveryMoment:
    """One waiter and its end, before, at and after its turn."""

    @pytest.mark.parametrize("way", WAYS)
    async def test_cancelled_in_the_queue(self, way: str) -> None:
        throttle, running = one_slot()
        first, second = Waiter(throttle, Demand(MID, "u")), Waiter(throttle, Demand(LOW, "v"))
        stop, _ = first.start(way), second.start("task")
        await quiet()
        stop()
        await quiet()
        assert first.verdict is None
        assert untouched(throttle, "u")
        assert throttle.admission.parts.settlement.limiter.waiting == 1
        running.settle()
        await quiet()
        assert isinstance(second.verdict, Permit)
        assert in_flight(throttle) == 0
        assert left_over(throttle) == NOTHING

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("later", LATER)
    async def test_called_and_not_yet_resumed(self, way: str, later: int) -> None:
        """The slot that it has been given and does not know of goes to the next in line."""
        throttle, running = one_slot()
        first, second = Waiter(throttle, Demand(MID, "u")), Waiter(throttle, Demand(LOW, "v"))
        stop, _ = first.start(way, 100), second.start("task")
        await quiet()
        running.settle()
        await turns(later)
        stop()
        await quiet()
        if first.verdict is None:
            assert untouched(throttle, "u")
            assert throttle.snapshot().oddities["disconnected_in_queue"] == 1
        else:
            assert (later, way) != (0, "task")
            assert isinstance(first.verdict, Permit)
            assert first.verdict.settled
        assert isinstance(second.verdict, Permit)
        assert in_flight(throttle) == 0
        assert left_over(throttle) == NOTHING

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("later", LATER)
    async def test_cancelled_and_then_called(self, way: str, later: int) -> None:
        throttle, running = one_slot()
        first = Waiter(throttle, Demand(MID, "u"))
        stop = first.start(way)
        await quiet()
        stop()
        await turns(later)
        running.settle()
        await quiet()
        assert first.verdict is None
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 0
        assert left_over(throttle) == NOTHING

    async def test_before_the_task_has_begun(self) -> None:
        throttle, _ = one_slot()
        task = asyncio.create_task(throttle.admit(Demand(MID, "u")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left_over(throttle) == NOTHING

    @pytest.mark.parametrize("later", LATER)
    async def test_expired_and_cancelled_in_one_turn(self, later: int) -> None:
        throttle, running = one_slot()
        first = Waiter(throttle, Demand(MID, "u"))
        stop = first.start("task")
        await quiet()
        throttle.clock.advance(60.0)
        running.settle()
        await turns(later)
        stop()
        await quiet()
        rejected = throttle.snapshot().requests[MID, "shed", Reason.QUEUE]
        assert rejected == (first.verdict is not None)
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 0
        assert left_over(throttle) == NOTHING

    @pytest.mark.parametrize("later", LATER)
    def test_under_trio(self, later: int) -> None:
        async def scenario() -> None:
            throttle, running = one_slot()
            first = Waiter(throttle, Demand(MID, "u"))
            async with anyio.create_task_group() as group:
                group.start_soon(first.ask_in_a_scope)
                await quiet()
                running.settle()
                await turns(later)
                first.scope.cancel()
            assert first.verdict is None or first.verdict.admitted
            assert in_flight(throttle) == 0
            assert left_over(throttle) == NOTHING
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
                        await quiet()
                    raise ValueError("another task has failed")

            with pytest.raises(BaseExceptionGroup):
                await fail()
            assert untouched(throttle, "u")
            assert left_over(throttle) == NOTHING

        run(backend, scenario)


class TestListener:
    """What the one does that listens whether the client is there."""

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
            assert left_over(throttle) == NOTHING

        run(backend, scenario)

    def test_a_real_interrupt_ends_the_loop_and_leaks_nothing(self) -> None:
        throttle, _ = one_slot()

        async def scenario() -> None:
            async def leaves() -> None:
                raise KeyboardInterrupt

            others = [asyncio.create_task(throttle.admit(Demand(LOW, "u"))) for _ in range(3)]
            await quiet()
            assert others
            await throttle.wait(ticket_for(throttle, Demand(MID, "u")), leaves)

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(scenario())
        assert untouched(throttle, "u")
        assert in_flight(throttle) == 1
        assert left_over(throttle) == NOTHING

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
                        await turns(3)

            verdict = await throttle.wait(ticket, leaves)
            if isinstance(verdict, Permit):
                assert called
                verdict.settle(Outcome.NEUTRAL)
            else:
                assert verdict is None
                assert untouched(throttle, "u")
            assert in_flight(throttle) == (not called)
            assert left_over(throttle) == NOTHING

        run(backend, scenario)

    async def test_without_a_wakeup_the_ticket_is_cancelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_wakeup() -> None:
            raise RuntimeError("which loop is this?")

        owner, _ = one_slot()
        monkeypatch.setattr(admission_module, "new_wakeup", no_wakeup)
        with pytest.raises(RuntimeError, match="which loop"):
            await owner.admit(Demand(MID, "u"))
        assert untouched(owner, "u")
        assert left_over(owner) == NOTHING
