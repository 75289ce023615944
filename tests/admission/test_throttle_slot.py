"""``Throttle.slot`` raises on rejection, and settles the permit exactly once."""

from __future__ import annotations

import anyio
import pytest

from autoglm_throttle import (
    Demand,
    GuardRejected,
    GuardRejection,
    Outcome,
    Permit,
    Priority,
    Reason,
    Rejected,
    Throttle,
)
from autoglm_throttle.testing import ManualThrottle
from autoglm_throttle.types import BreakerCause, BreakerState, Decision
from tests.admission.limited_throttle import (
    NO_REMAINING_STATE,
    active,
    in_flight,
    limited_throttle,
    outcomes,
    permits_for,
    remaining_state,
    warmed,
)
from tests.admission.waiter import let_tasks_run
from tests.loops import run

MID, LOW = Priority.MID, Priority.LOW
REJECTION = Decision(False, Reason.GPU, "gpu:overload")
OTHER_GUARD = GuardRejection("db", BreakerState.OPEN, BreakerCause.FAILURES, 1.0)


class BlockError(Exception):
    """An error in the block of the caller."""


def assert_settled_once(throttle: Throttle, *expected: Outcome) -> None:
    assert outcomes(throttle) == {outcome: expected.count(outcome) for outcome in expected}
    assert throttle.snapshot().stale_results == 0
    assert (active(throttle), in_flight(throttle)) == (0, 0)
    assert remaining_state(throttle) == NO_REMAINING_STATE


def one_slot() -> tuple[ManualThrottle, Permit]:
    """Build a throttle with one slot, which is in use."""
    throttle = warmed(limited_throttle(slo_s=240.0))
    return throttle, permits_for(throttle)[0]


async def fill(throttle: Throttle, entered: list[Permit], errors: list[Rejected]) -> None:
    try:
        async with throttle.slot(Demand(LOW)) as permit:  # LOW, as `held`: `outcomes` is by priority
            entered.append(permit)
    except Rejected as error:
        errors.append(error)


def test_slot_admitted_settles_success(backend: str) -> None:
    async def scenario() -> None:
        throttle = limited_throttle()
        async with throttle.slot(Demand(MID)) as permit:
            assert isinstance(permit, Permit)
            assert (in_flight(throttle), permit.settled) == (1, False)
        assert_settled_once(throttle, Outcome.SUCCESS)

    run(backend, scenario)


def test_slot_rejected_raises_the_decision(backend: str) -> None:
    async def scenario() -> None:
        throttle = limited_throttle(user_limit="1/minute")
        async with throttle.slot(Demand(MID, "u")):
            pass
        with pytest.raises(Rejected) as caught:
            async with throttle.slot(Demand(MID, "u")):
                pytest.fail("the block of a rejected demand must not run")
        assert caught.value.decision.reason is Reason.USER
        assert caught.value.decision.retry_after_s == 60.0
        assert_settled_once(throttle, Outcome.SUCCESS)

    run(backend, scenario)


def test_slot_waits_in_the_queue(backend: str) -> None:
    async def scenario() -> None:
        throttle, running = one_slot()
        entered: list[Permit] = []
        errors: list[Rejected] = []
        async with anyio.create_task_group() as group:
            group.start_soon(fill, throttle, entered, errors)
            await let_tasks_run()
            assert (entered, throttle.admission.parts.settlement.limiter.waiting) == ([], 1)
            running.settle()
        assert (len(entered), errors) == (1, [])
        assert_settled_once(throttle, Outcome.SUCCESS, Outcome.SUCCESS)

    run(backend, scenario)


def test_slot_raises_after_a_timeout_in_the_queue(backend: str) -> None:
    async def scenario() -> None:
        throttle, running = one_slot()
        entered: list[Permit] = []
        errors: list[Rejected] = []
        async with anyio.create_task_group() as group:
            group.start_soon(fill, throttle, entered, errors)
            await let_tasks_run()
            throttle.clock.advance(241.0)
            throttle.called()  # drops the expired ticket and wakes its waiter
            running.settle()
        assert [error.decision.detail for error in errors] == ["queue:timeout"]
        assert entered == []
        assert_settled_once(throttle, Outcome.SUCCESS)

    run(backend, scenario)


def test_slot_cancelled_in_the_queue_takes_nothing(backend: str) -> None:
    async def scenario() -> None:
        throttle, running = one_slot()
        async with anyio.create_task_group() as group:
            group.start_soon(fill, throttle, [], [])
            await let_tasks_run()
            assert throttle.admission.parts.settlement.limiter.waiting == 1
            group.cancel_scope.cancel()
        assert throttle.admission.parts.settlement.limiter.waiting == 0
        running.settle()
        assert_settled_once(throttle, Outcome.SUCCESS)

    run(backend, scenario)


def test_slot_cancelled_in_the_block_settles_neutral(backend: str) -> None:
    async def scenario() -> None:
        throttle = limited_throttle()
        with anyio.CancelScope() as scope:
            async with throttle.slot(Demand(MID)):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert_settled_once(throttle, Outcome.NEUTRAL)

    run(backend, scenario)


def caused_by(rejected: GuardRejected) -> BlockError:
    """Build the exception of a client's library, caused by a rejection."""
    error = BlockError()
    error.__cause__ = rejected
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BlockError(), Outcome.FAILURE),
        (StopIteration(), Outcome.FAILURE),
        (StopAsyncIteration(), Outcome.FAILURE),
        (Rejected(REJECTION), Outcome.NEUTRAL),
        (GuardRejected(OTHER_GUARD), Outcome.NEUTRAL),
        (caused_by(GuardRejected(OTHER_GUARD)), Outcome.NEUTRAL),
        (KeyboardInterrupt(), Outcome.NEUTRAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_slot_settles_by_the_exception(backend: str, error: BaseException, outcome: Outcome) -> None:
    async def scenario() -> None:
        throttle = limited_throttle()
        with pytest.raises(type(error)) as caught:
            async with throttle.slot(Demand(MID)):
                raise error
        assert caught.value is error
        assert_settled_once(throttle, outcome)

    run(backend, scenario)


def test_slot_keeps_an_outcome_set_in_the_block(backend: str) -> None:
    async def scenario() -> None:
        throttle = limited_throttle()
        async with throttle.slot(Demand(MID)) as permit:
            permit.settle(Outcome.SLOW)
        assert_settled_once(throttle, Outcome.SLOW)

    run(backend, scenario)


async def test_slot_leases_before_it_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = limited_throttle()
    leased: list[Demand] = []

    async def lease(demand: Demand) -> None:
        leased.append(demand)

    monkeypatch.setattr(throttle.admission, "has_leases", True)
    monkeypatch.setattr(throttle.admission, "ensure_lease", lease)
    demand = Demand(MID)
    async with throttle.slot(demand):
        assert leased == [demand]


def test_slot_runs_with_no_throttle(no_throttle: ManualThrottle) -> None:
    async def scenario() -> None:
        async with no_throttle.slot(Demand(LOW)) as permit:
            assert permit.decision.allowed

    run("asyncio", scenario)
