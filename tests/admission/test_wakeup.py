"""The wake-up of a waiter: under asyncio and trio, from the same thread and from another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from autoglm_throttle._runtime.wakeup import TICK_S, Wakeup, new_wakeup
from tests.loops import BACKENDS, run

LONG_S = 60.0

Wait = Callable[[Wakeup, float], Coroutine[Any, Any, None]]


async def asleep(wakeup: Wakeup, seconds: float) -> None:
    await wakeup.sleep(seconds)


async def in_block(wakeup: Wakeup, seconds: float) -> None:
    with wakeup.until(seconds):
        await anyio.sleep_forever()


both_waits = pytest.mark.parametrize("wait", [asleep, in_block])


@both_waits
def test_call_in_the_same_loop_wakes_its_waiter(backend: str, wait: Wait) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        async with anyio.create_task_group() as group:
            group.start_soon(wait, wakeup, LONG_S)
            await anyio.wait_all_tasks_blocked()
            wakeup()

    run(backend, scenario)


@both_waits
@pytest.mark.parametrize("steps", [0, 20])
def test_call_before_the_wait_ends_it(backend: str, wait: Wait, steps: int) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        wakeup()
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await wait(wakeup, LONG_S)

    run(backend, scenario)


def test_call_between_sleep_and_block_ends_the_block() -> None:
    """A finalizer may make it at any allocation."""

    async def scenario() -> None:
        wakeup = new_wakeup()
        await wakeup.sleep(0.0)
        block = wakeup.until(LONG_S)
        wakeup()
        with block:
            await anyio.sleep_forever()

    run("asyncio", scenario)


@both_waits
def test_call_while_its_loop_was_blocked_wakes(wait: Wait) -> None:
    loop = asyncio.new_event_loop()
    wakeups: list[Wakeup] = []

    async def waiter() -> None:
        wakeups.append(new_wakeup())
        await wait(wakeups[0], LONG_S)

    try:
        task = loop.create_task(waiter())
        loop.run_until_complete(asyncio.sleep(0.001))
        wakeups[0]()
        loop.run_until_complete(asyncio.wait_for(task, 60.0))
    finally:
        loop.close()


@both_waits
@pytest.mark.parametrize("seconds", [0.001, 0.0, -1.0])
def test_the_wait_ends_by_itself(backend: str, wait: Wait, seconds: float) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        await wait(wakeup, seconds)
        assert not wakeup.is_set

    run(backend, scenario)


def test_block_that_ends_first_is_not_cancelled(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        ended = False
        with wakeup.until(LONG_S):
            await anyio.lowlevel.checkpoint()
            ended = True
        assert ended
        wakeup()
        await anyio.lowlevel.checkpoint()

    run(backend, scenario)


@both_waits
def test_call_twice_or_too_late_does_nothing(backend: str, wait: Wait) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        async with anyio.create_task_group() as group:
            group.start_soon(wait, wakeup, LONG_S)
            await anyio.wait_all_tasks_blocked()
            wakeup()
            wakeup()
        wakeup()
        await anyio.lowlevel.checkpoint()

    run(backend, scenario)


@both_waits
def test_task_continues_after_a_wait_without_cancellation(backend: str, wait: Wait) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        called = False

        async def call() -> None:
            nonlocal called
            wakeup()
            called = True

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await wait(wakeup, LONG_S)
            await anyio.sleep(0.0)
        assert called
        if backend == "asyncio":
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    run(backend, scenario)


@both_waits
@pytest.mark.parametrize("is_woken", [False, True])
def test_a_cancelled_waiter_stays_cancelled(backend: str, wait: Wait, is_woken: bool) -> None:
    async def scenario() -> None:
        wakeups: list[Wakeup] = []
        ended: list[str] = []

        async def waiter() -> None:
            wakeups.append(new_wakeup())
            try:
                await wait(wakeups[0], LONG_S)
                await anyio.lowlevel.checkpoint()
                ended.append("woken")
            except anyio.get_cancelled_exc_class():
                ended.append("cancelled")
                raise

        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            if is_woken:
                wakeups[0]()
            group.cancel_scope.cancel()
        assert ended == ["cancelled"]

    run(backend, scenario)


async def test_cancellation_beside_the_own_one_is_not_left_out() -> None:
    wakeup = new_wakeup()

    async def waiter() -> None:
        with wakeup.until(LONG_S):
            await asyncio.Event().wait()
        raise AssertionError("it goes on")

    task = asyncio.ensure_future(waiter())
    await asyncio.sleep(0)
    wakeup()
    asyncio.get_running_loop().call_soon(task.cancel)  # after the own one, in the same iteration
    with pytest.raises(asyncio.CancelledError):
        await task


def test_error_in_the_block_is_raised(backend: str) -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError, match="its own"), new_wakeup().until(LONG_S):
            raise TimeoutError("its own")

    run(backend, scenario)


async def test_own_cancellation_does_not_hide_an_error() -> None:
    async def broken() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("its own")

    wakeup = new_wakeup()
    asyncio.get_running_loop().call_soon(wakeup)
    with pytest.raises(ValueError, match="its own"), wakeup.until(LONG_S):
        await broken()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@both_waits
@pytest.mark.parametrize("other", BACKENDS)
def test_a_loop_in_another_thread_is_woken(backend: str, other: str, wait: Wait) -> None:
    ready, returned = threading.Event(), threading.Event()
    wakeups: list[Wakeup] = []

    async def theirs() -> None:
        wakeups.append(new_wakeup())
        ready.set()
        await wait(wakeups[0], LONG_S)
        returned.set()

    async def ours() -> None:
        assert ready.wait(60)
        wakeups[0]()

    thread = threading.Thread(target=run, args=(other, theirs))
    thread.start()
    run(backend, ours)
    assert returned.wait(60)
    thread.join()
    wakeups[0]()


def test_wakeup_of_a_closed_loop_is_harmless(backend: str) -> None:
    wakeups: list[Wakeup] = []

    async def make() -> None:
        wakeups.append(new_wakeup())

    thread = threading.Thread(target=run, args=(backend, make))
    thread.start()
    thread.join()
    wakeups[0]()


@both_waits
async def test_waits_that_end_together_share_a_timer(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *arguments: object) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    monkeypatch.setattr(loop, "time", lambda: 1000.0)
    waits = [asyncio.ensure_future(wait(new_wakeup(), LONG_S)) for _ in range(100)]
    await asyncio.sleep(0)
    assert len(timers) == 1
    assert 1000.0 + LONG_S < timers[0] <= 1000.0 + LONG_S + TICK_S
    monkeypatch.setattr(loop, "time", lambda: timers[0])
    await asyncio.wait(waits)
