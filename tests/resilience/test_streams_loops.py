"""Streams in event loops: gaps that are too long, readers that are cancelled, readers that forget."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest

from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import BreakerState
from tests.loops import run
from tests.resilience.fake_store import FakeStore
from tests.resilience.tripping import Clocked, fail, half_open


class Slow:
    """Sends so many items and then nothing more, and wants to be closed in peace."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.closed = 0
        self.cleaned = 0

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for item in range(self.items):
                await anyio.lowlevel.checkpoint()
                yield item
            await anyio.sleep_forever()
        finally:
            self.closed += 1
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.cleaned += 1


@pytest.mark.parametrize("items", [0, 2])
def test_a_gap_that_is_too_long_is_a_failure(backend: str, items: int) -> None:
    circuit, source = half_open(BreakerSettings(failures=1, stream_idle_s=0.01)), Slow(items)
    seen: list[int] = []

    async def read() -> None:
        async for item in Guard(circuit)(source.stream)():
            seen.append(item)  # noqa: PERF401 - it breaks off

    async def main() -> None:
        with pytest.raises(TimeoutError, match=r"db has sent nothing within 0\.01 s"):
            await read()

    run(backend, main)
    assert seen == list(range(items))
    assert circuit.view().last_failure.startswith("GuardTimeoutError: db has sent nothing")
    assert circuit.state() is BreakerState.OPEN
    assert source.cleaned == 1


def test_a_reader_may_take_all_the_time_in_the_world(backend: str) -> None:
    circuit = half_open(BreakerSettings.model_construct(failures=1, stream_idle_s=1e-9))

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main() -> None:
        async for _ in Guard(circuit)(numbers)():
            for _ in range(3):
                await anyio.lowlevel.checkpoint()

    run(backend, main)
    assert circuit.state() is BreakerState.CLOSED


@pytest.mark.parametrize("items", [0, 2])
@pytest.mark.parametrize("idle_s", [None, 60.0])
def test_a_reader_that_is_cancelled_is_no_evidence(backend: str, items: int, idle_s: float | None) -> None:
    circuit, source = half_open(BreakerSettings(failures=1, stream_idle_s=idle_s)), Slow(items)

    async def read() -> None:
        async for _ in Guard(circuit)(source.stream)():
            pass

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert circuit.view().probes == 1
            tasks.cancel_scope.cancel()

    for _ in range(2):
        run(backend, main)
        assert circuit.view().probes == 0
    assert circuit.state() is BreakerState.HALF_OPEN
    assert source.cleaned == 2


def test_a_reader_that_leaves_waits_for_the_stream_to_be_closed(backend: str) -> None:
    circuit, source = half_open(), Slow(3)

    async def main() -> None:
        async with aclosing(Guard(circuit)(source.stream)()) as stream:
            async for _ in stream:
                break
            assert (source.closed, circuit.view().probes) == (0, 1)
        assert (source.cleaned, circuit.view().probes) == (1, 0)

    run(backend, main)


@pytest.mark.slow
def test_a_stream_that_is_forgotten_gives_its_place_back() -> None:
    circuit, source = half_open(), Slow(3)

    async def forget() -> None:
        async for _ in Guard(circuit)(source.stream)():
            break

    async def main() -> None:
        for number in range(1, 4):
            await forget()
            gc.collect()
            for _ in range(5):
                await asyncio.sleep(0)
            assert circuit.view().probes == 0
            assert source.cleaned == number

    asyncio.run(main())
    assert circuit.state() is BreakerState.HALF_OPEN


def test_abandoned_stream_under_trio_releases_its_slot() -> None:
    circuit, source = half_open(), Slow(3)

    async def forget() -> None:
        await Guard(circuit)(source.stream)().__anext__()
        gc.collect()
        await anyio.wait_all_tasks_blocked()

    async def main() -> None:
        with pytest.warns(ResourceWarning, match="garbage collected before it had been exhausted"):
            await forget()
        assert circuit.view().probes == 0

    run("trio", main)
    assert circuit.state() is BreakerState.HALF_OPEN


def test_reader_cancelled_at_the_start_takes_nothing(backend: str) -> None:
    store = FakeStore()
    circuit = Clocked(store=store)
    circuit.allow()
    fail(circuit)
    circuit.clock.advance(10.0)
    store.wait = anyio.sleep_forever

    async def main() -> None:
        with anyio.move_on_after(0) as scope:
            async for _ in Guard(circuit)(Slow(1).stream)():
                pass
        assert scope.cancelled_caught

    run(backend, main)
    assert circuit.view().probes == 0
    assert store.requested == []


def test_a_stream_may_be_read_by_one_task_and_left_by_another(backend: str) -> None:
    circuit, source = half_open(BreakerSettings(failures=1, stream_idle_s=60.0)), Slow(3)

    async def main() -> None:
        stream = Guard(circuit)(source.stream)()

        async def read() -> None:
            await stream.__anext__()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.aclose)

    run(backend, main)
    assert circuit.view().probes == 0
    assert source.cleaned == 1
