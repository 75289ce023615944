"""Plain functions that return awaitables: the call ends with what it has returned."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.model import State
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.resilience.rules import Rules
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
    circuit = Clocked(Rules(failures=2)) if state == "closed" else half_open()
    if state == "closed":
        fail(circuit)
    call = later(Guard(circuit), broken)()
    assert circuit.state() is (State.CLOSED if state == "closed" else State.HALF_OPEN)
    with pytest.raises(OSError, match="the dependency's"):
        drive(call)  # type: ignore[arg-type]
    assert circuit.state() is State.OPEN


def test_an_awaitable_may_become_a_task() -> None:
    circuit = half_open()

    async def main() -> None:
        call = later(Guard(circuit), partial(anyio.lowlevel.checkpoint))()
        task: asyncio.Task[Any] = asyncio.create_task(call)  # type: ignore[arg-type]
        await task

    asyncio.run(main())
    assert circuit.state() is State.CLOSED


def test_a_future_may_be_awaited_with_others() -> None:
    circuit = half_open()

    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        call = later(Guard(circuit), lambda: future)()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        (found,) = await asyncio.gather(call)
        assert found == 7

    asyncio.run(main())
    assert circuit.state() is State.CLOSED


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
    assert circuit.state() is State.HALF_OPEN
    assert circuit.view().trials == 0


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_an_awaitable_that_is_dropped_gives_its_place_back(started: bool, closed: bool) -> None:
    class Stuck(Slot):
        def __await__(self) -> Generator[Any, Any, int]:
            yield
            return 7

    circuit = half_open()
    call: Any = later(Guard(circuit), Stuck)()
    assert circuit.view().trials == 1
    if started:
        call.send(None)
    if closed:
        call.close()
        call.close()
    else:
        del call
        gc.collect()
    assert circuit.view().trials == 0
    assert circuit.state() is State.HALF_OPEN


def test_an_awaitable_settles_once() -> None:
    circuit = half_open()
    call: Any = later(Guard(circuit), Slot)()
    assert drive(call) == 7
    with pytest.raises(RuntimeError, match="cannot reuse"):
        drive(call)
    call.close()
    del call
    assert circuit.state() is State.CLOSED
    assert circuit.view().stale_results == 0
