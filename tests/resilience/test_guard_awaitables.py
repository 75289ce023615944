"""Plain functions that return awaitables: the call ends with the awaitable."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.calls import SettlingAwaitable
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState
from tests.loops import run
from tests.resilience.doubling import Slot
from tests.resilience.faces import drive
from tests.resilience.tripping import Clocked, fail, half_open


def later(guard: Guard, inner: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    @guard
    def call() -> Awaitable[Any]:
        return inner()

    return call


async def broken() -> None:
    raise OSError("the dependency's")


@pytest.mark.parametrize("state", ["closed", "half-open"])
def test_an_awaitable_settles_when_it_ends(state: str) -> None:
    circuit = Clocked(BreakerSettings(failures=2)) if state == "closed" else half_open()
    if state == "closed":
        fail(circuit)
    call = later(Guard(circuit), broken)()
    assert circuit.state() is (BreakerState.CLOSED if state == "closed" else BreakerState.HALF_OPEN)
    with pytest.raises(OSError, match="the dependency's"):
        drive(call)  # type: ignore[arg-type]
    assert circuit.state() is BreakerState.OPEN


def test_an_awaitable_may_become_a_task() -> None:
    circuit = half_open()

    async def main() -> None:
        call = later(Guard(circuit), partial(anyio.lowlevel.checkpoint))()
        task: asyncio.Task[Any] = asyncio.create_task(call)  # type: ignore[arg-type]
        await task

    asyncio.run(main())
    assert circuit.state() is BreakerState.CLOSED


def test_a_future_may_be_awaited_with_others() -> None:
    circuit = half_open()

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        call = later(Guard(circuit), lambda: future)()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        (found,) = await asyncio.gather(call)
        assert found == 7

    asyncio.run(main())
    assert circuit.state() is BreakerState.CLOSED


def test_a_task_of_an_awaitable_that_is_cancelled_is_no_evidence() -> None:
    circuit = half_open()

    async def main() -> None:
        call = later(Guard(circuit), anyio.sleep_forever)()
        task: asyncio.Task[Any] = asyncio.create_task(call)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert circuit.state() is BreakerState.HALF_OPEN
    assert circuit.view().probes == 0


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_an_awaitable_that_is_dropped_gives_its_place_back(started: bool, closed: bool) -> None:
    class Stuck(Slot):
        def __await__(self) -> Generator[Any, Any, int]:
            yield
            return 7

    circuit = half_open()
    call: Any = later(Guard(circuit), Stuck)()
    assert circuit.view().probes == 1
    if started:
        call.send(None)
    if closed:
        call.close()
        call.close()
    else:
        del call
        gc.collect()
    assert circuit.view().probes == 0
    assert circuit.state() is BreakerState.HALF_OPEN


def test_an_awaitable_settles_once() -> None:
    circuit = half_open()
    call: Any = later(Guard(circuit), Slot)()
    assert drive(call) == 7
    with pytest.raises(RuntimeError, match="cannot reuse"):
        drive(call)
    call.close()
    del call
    assert circuit.state() is BreakerState.CLOSED
    assert circuit.view().stale_results == 0


class Request(Slot):
    """An object that may be awaited or entered, such as a request of aiohttp."""

    def __init__(self, error: Exception | None = None) -> None:
        self.url = "http://models.test"
        self.error = error
        self.left: list[object] = []

    async def __aenter__(self) -> int:
        await anyio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return 7

    async def __aexit__(self, *error: object) -> bool:
        self.left.append(error[1])
        return isinstance(error[1], KeyError)


async def entered(call: Any, body: Exception | None = None) -> int:
    """Enter it, and raise something in the block."""
    async with call as found:
        if body is not None:
            raise body
    return int(found)


def test_context_manager_result_is_entered_and_settles_then(backend: str) -> None:
    async def task() -> None:
        circuit, request, error = half_open(), Request(), KeyError("the block's")
        call = later(Guard(circuit), lambda: request)()
        assert circuit.view().probes == 1
        assert await entered(call, error) == 7
        assert request.left == [error]
        assert circuit.state() is BreakerState.CLOSED

    run(backend, task)


def test_failing_enter_is_a_failure(backend: str) -> None:
    async def task() -> None:
        circuit = half_open()
        with pytest.raises(OSError, match="away"):
            await entered(later(Guard(circuit), lambda: Request(OSError("away")))())
        assert circuit.state() is BreakerState.OPEN

    run(backend, task)


@pytest.mark.slow
def test_context_manager_result_may_be_awaited_or_dropped() -> None:
    circuit = half_open()
    call = later(Guard(circuit), Request)
    call()
    gc.collect()
    assert circuit.view().probes == 0
    assert drive(call()) == 7  # type: ignore[arg-type]
    assert circuit.state() is BreakerState.CLOSED


def test_awaitable_keeps_its_other_attributes() -> None:
    call: Any = later(Guard(half_open()), Request)()
    assert call.url == "http://models.test"
    with pytest.raises(AttributeError, match="nothing"):
        _ = call.nothing
    plain: Any = later(Guard(half_open()), Slot)()
    assert not hasattr(plain, "__aenter__")


def test_an_awaitable_that_was_not_made_yet_has_nothing() -> None:
    class Unmade(SettlingAwaitable):
        def __del__(self) -> None:
            """It has no call to give back."""

    with pytest.raises(AttributeError):
        _ = Unmade.__new__(Unmade).url


def test_coroutine_closed_before_its_start_closes_the_inner() -> None:
    circuit = half_open()
    inner = broken()
    call: Any = later(Guard(circuit), lambda: inner)()
    call.close()
    assert inspect.getcoroutinestate(inner) == inspect.CORO_CLOSED
    assert circuit.view().probes == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_task_cancelled_before_its_start_releases_its_slot() -> None:
    circuit = Clocked(BreakerSettings(max_in_flight=3))
    ends = asyncio.Event()

    def later() -> Coroutine[Any, Any, bool]:
        return ends.wait()

    task = asyncio.create_task(Guard(circuit)(later)())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert circuit.view().in_flight == 0
    del task
    await asyncio.sleep(0)  # the loop lets go of it, and what it never began is collected here


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_never_awaited_call_frees_its_slot() -> None:
    circuit = Clocked(BreakerSettings(max_in_flight=3))
    never = Guard(circuit)(lambda: asyncio.sleep(1.0))().__await__()
    assert circuit.view().in_flight == 1
    del never
    gc.collect()
    assert circuit.view().in_flight == 0
