"""A guard as a block, and by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerCause, BreakerState, GuardRejected, GuardRejection, Outcome
from tests.loops import run
from tests.resilience.faces import drive
from tests.resilience.fake_store import FakeStore
from tests.resilience.tripping import Clocked, Shedding, fail, half_open, opened, passed, rejected


def enter(guard: Guard) -> Guard:
    return guard.__enter__()


def enter_async(guard: Guard) -> Guard:
    entered: Guard = drive(guard.__aenter__())
    return entered


def leave(guard: Guard) -> None:
    guard.__exit__(None, None, None)


def leave_async(guard: Guard) -> None:
    drive(guard.__aexit__(None, None, None))


Ways = tuple[Callable[[Guard], Guard], Callable[[Guard], None]]


@pytest.fixture(params=[(enter, leave), (enter_async, leave_async)], ids=["with", "async with"])
def ways(request: pytest.FixtureRequest) -> Ways:
    """In and out, of both kinds."""
    found: Ways = request.param
    return found


def test_a_block_lets_through_and_records(ways: Ways) -> None:
    circuit = Clocked(BreakerSettings(failures=2))
    fail(circuit)
    way_in, way_out = ways
    guard = Guard(circuit)
    assert way_in(guard) is guard
    assert circuit.view().streak == 1
    way_out(guard)
    assert circuit.view().streak == 0


def test_block_rejects(ways: Ways) -> None:
    way_in, _ = ways
    for _ in range(2):
        circuit = opened()
        for _ in range(2):
            with pytest.raises(GuardRejected) as caught:
                way_in(Guard(circuit))
            assert caught.value.retry_after_s == 10.0


@pytest.mark.parametrize("state", ["closed", "open", "half-open"])
def test_a_block_serves_once_however_it_went(ways: Ways, state: str) -> None:
    way_in, way_out = ways
    circuit = {"closed": Clocked, "open": opened, "half-open": half_open}[state]()
    guard = Guard(circuit)
    if state == "open":
        with pytest.raises(GuardRejected):
            way_in(guard)
    else:
        way_in(guard)
    calls = circuit.view().calls
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"call throttle\.guard\(name\) for each block"):
            way_in(guard)
    assert circuit.view().calls == calls
    if state != "open":
        way_out(guard)
    with pytest.raises(RuntimeError, match="was entered before"):
        way_in(guard)


def test_a_block_is_left_once(ways: Ways) -> None:
    way_in, way_out = ways
    guard = Guard(half_open())
    with pytest.raises(RuntimeError, match="'db' is left, but it was not entered"):
        way_out(Guard(guard.circuit))
    way_in(guard)
    way_out(guard)
    with pytest.raises(RuntimeError, match="'db' is left, but it was not entered"):
        way_out(guard)
    assert guard.view().stale_results == 0


def test_task_waiting_to_enter_holds_the_block(backend: str) -> None:
    store = FakeStore()
    store.wait = anyio.sleep_forever
    guard = Guard(Clocked(store=store))

    async def first() -> None:
        async with guard:
            pass

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="was entered before"):
                await guard.__aenter__()
            tasks.cancel_scope.cancel()

    run(backend, main)


def test_an_exception_passes_through_as_it_is(ways: Ways) -> None:
    circuit = Clocked()
    error = OSError("the dependency's")
    with pytest.raises(OSError, match="the dependency's") as caught, Guard(circuit):
        raise error
    assert caught.value is error
    assert circuit.state() is BreakerState.OPEN


def test_caller_that_opens_the_breaker_gets_its_own_error() -> None:
    circuit = Clocked(BreakerSettings(failures=2))
    for _ in range(2):
        with pytest.raises(ConnectionError, match="his own"), Guard(circuit):
            raise ConnectionError("his own")
    with pytest.raises(GuardRejected), Guard(circuit):
        pass


def test_nested_guards_do_not_open_one_another() -> None:
    outer, inner = Clocked(BreakerSettings(failures=1)), opened()
    for _ in range(5):
        with pytest.raises(GuardRejected) as caught, Guard(outer), Guard(inner):
            raise AssertionError("nobody may come here")
        assert caught.value.rejection.cause is BreakerCause.FAILURES
    assert outer.state() is BreakerState.CLOSED
    assert outer.view().streak == 0


def test_a_failure_within_counts_for_both_guards() -> None:
    outer, inner = Clocked(), Clocked()
    with pytest.raises(OSError, match="deep down"), Guard(outer), Guard(inner):
        raise OSError("deep down")
    assert outer.state() is inner.state() is BreakerState.OPEN


def test_probe_may_end_on_another_thread() -> None:
    circuit = half_open()
    guard = Guard(circuit)
    guard.__enter__()
    thread = threading.Thread(target=leave, args=(guard,))
    thread.start()
    thread.join(60)
    assert circuit.state() is BreakerState.CLOSED


def test_probe_may_end_in_another_task(backend: str) -> None:
    circuit = half_open()
    guard = Guard(circuit)

    async def ends() -> None:
        await guard.__aexit__(None, None, None)

    async def main() -> None:
        await guard.__aenter__()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends)

    run(backend, main)
    assert circuit.state() is BreakerState.CLOSED


def test_each_request_may_have_a_loop_of_its_own(backend: str) -> None:
    circuit = Clocked(BreakerSettings(failures=3))

    @Guard(circuit)
    async def call(*, works: bool) -> None:
        await anyio.lowlevel.checkpoint()
        if not works:
            raise OSError

    async def request() -> None:
        async with Guard(circuit):
            await call(works=True)

    async def broken() -> None:
        with pytest.raises(OSError, match=r"^$"):
            await call(works=False)

    for task in (request, broken, broken, request, broken, broken, broken):
        run(backend, task)
    assert circuit.state() is BreakerState.OPEN


def test_a_cancelled_block_is_no_evidence(backend: str) -> None:
    circuit = half_open()

    async def main() -> None:
        with anyio.move_on_after(0) as scope:
            async with Guard(circuit):
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    for _ in range(3):
        run(backend, main)
    assert circuit.state() is BreakerState.HALF_OPEN
    assert circuit.view().probes == 0


def test_a_block_is_timed_from_its_beginning(ways: Ways) -> None:
    way_in, way_out = ways
    for state, took_s in ((BreakerState.CLOSED, 0.5), (BreakerState.OPEN, 0.6)):
        circuit = Clocked(BreakerSettings(failures=1, slow_call_s=0.5))
        guard = Guard(circuit)
        way_in(guard)
        circuit.clock.advance(took_s)
        way_out(guard)
        assert circuit.state() is state
    trial = Guard(circuit)
    circuit.clock.advance(10.0)
    way_in(trial)
    circuit.clock.advance(0.6)
    way_out(trial)
    assert circuit.state() is BreakerState.OPEN


# By hand


def test_by_hand() -> None:
    guard = Guard(Clocked(BreakerSettings(failures=2)))
    assert guard.rejection() is None
    for error in (OSError("first"), "second"):
        guard.settle(passed(guard.allow()), Outcome.FAILURE, error)
    rejection = rejected(guard.allow())
    assert rejected(asyncio.run(guard.allow_async())) == rejection == guard.rejection()
    assert guard.view().last_failure == "second"
    assert guard.state() is BreakerState.OPEN
    guard.circuit.clock.advance(10.0)  # type: ignore[attr-defined]
    trial = passed(drive(guard.allow_async()))
    guard.settle(trial)
    assert guard.state() is BreakerState.CLOSED
    assert guard.name == "db"
    assert guard.settings.failures == 2


def test_operators_have_their_verbs() -> None:
    guard = Guard(Clocked())
    states = []
    for verb in (guard.force_open, guard.disable, guard.reset):
        verb()
        states.append(guard.state())
    assert states == [BreakerState.FORCED_OPEN, BreakerState.DISABLED, BreakerState.CLOSED]
    guard.metrics_only()
    assert guard.view().metrics_only
    assert repr(guard).startswith("<Guard 'db' closed, ")


@pytest.mark.parametrize("by_hand", [True, False])
def test_shed_feature_is_rejected_in_blocks_and_by_hand(by_hand: bool) -> None:
    circuit: GuardState = Clocked()
    circuit.attach(Shedding(GuardRejection("db", BreakerState.CLOSED, BreakerCause.SHED, 3.0)))
    if by_hand:
        assert rejected(Guard(circuit).allow()).cause is BreakerCause.SHED
        assert rejected(drive(Guard(circuit).allow_async())).cause is BreakerCause.SHED
        return
    for way_in in (enter, enter_async):
        with pytest.raises(GuardRejected, match="shed"):
            way_in(Guard(circuit))
