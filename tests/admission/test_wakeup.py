"""The wake-up of a waiter: under asyncio and trio, from the same thread and from another."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from autoglm_throttle._runtime.wakeup import Wakeup, new_wakeup
from tests.loops import BACKENDS, run

LONG_S = 60.0


def test_wakeup_set_in_the_same_loop_wakes_its_waiter(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        returned: list[bool] = []

        async def waiter() -> None:
            returned.append(await wakeup.wait(LONG_S, anyio.sleep_forever))

        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            wakeup.set()
        assert returned == [False]

    run(backend, scenario)


def test_wakeup_set_before_the_wait_ends_it(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        wakeup.set()
        assert not await wakeup.wait(LONG_S, anyio.sleep_forever)

    run(backend, scenario)


def test_wakeup_set_long_before_the_wait_ends_it_at_once(backend: str) -> None:
    async def leaves() -> None:
        raise AssertionError("there is nothing to wait for")

    async def scenario() -> None:
        wakeup = new_wakeup()
        wakeup.set()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert not await wakeup.wait(LONG_S, leaves)

    run(backend, scenario)


def test_wakeup_set_while_its_loop_was_blocked_wakes() -> None:
    loop = asyncio.new_event_loop()
    wakeups: list[Wakeup] = []

    async def waiter() -> bool:
        wakeups.append(new_wakeup())
        return await wakeups[0].wait(LONG_S, anyio.sleep_forever)

    try:
        task = loop.create_task(waiter())
        loop.run_until_complete(asyncio.sleep(0.001))
        wakeups[0].set()
        assert loop.run_until_complete(asyncio.wait_for(task, 60.0)) is False
    finally:
        loop.close()


def test_the_wait_ends_by_itself(backend: str) -> None:
    async def scenario() -> None:
        assert not await new_wakeup().wait(0.001, anyio.sleep_forever)
        assert not await new_wakeup().wait(-1.0, anyio.sleep_forever)

    run(backend, scenario)


def test_wait_returns_true_after_a_disconnect(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        assert await wakeup.wait(LONG_S, anyio.lowlevel.checkpoint)
        wakeup.set()

    run(backend, scenario)


def test_wakeup_set_twice_or_too_late_does_nothing(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        async with anyio.create_task_group() as group:
            group.start_soon(wakeup.wait, LONG_S, anyio.sleep_forever)
            await anyio.wait_all_tasks_blocked()
            wakeup.set()
            wakeup.set()
        wakeup.set()
        await anyio.lowlevel.checkpoint()

    run(backend, scenario)


def test_task_continues_after_a_wait_without_cancellation(backend: str) -> None:
    async def scenario() -> None:
        wakeup = new_wakeup()
        wakeup_set = False

        async def ring() -> None:
            nonlocal wakeup_set
            wakeup.set()
            wakeup_set = True

        async with anyio.create_task_group() as group:
            group.start_soon(ring)
            await wakeup.wait(LONG_S, anyio.sleep_forever)
            await anyio.sleep(0.0)
        assert wakeup_set
        if backend == "asyncio":
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    run(backend, scenario)


def test_a_cancelled_waiter_stays_cancelled(backend: str) -> None:
    async def scenario() -> None:
        wakeups: list[Wakeup] = []
        ended: list[str] = []

        async def waiter() -> None:
            wakeups.append(new_wakeup())
            try:
                await wakeups[0].wait(LONG_S, anyio.sleep_forever)
                ended.append("woken")
            except anyio.get_cancelled_exc_class():
                ended.append("cancelled")
                raise

        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert ended == ["cancelled"]

    run(backend, scenario)


def test_error_of_the_disconnect_watch_is_raised(backend: str) -> None:
    async def listen() -> None:
        raise TimeoutError("its own")

    async def scenario() -> None:
        with pytest.raises(TimeoutError, match="its own"):
            await new_wakeup().wait(LONG_S, listen)

    run(backend, scenario)


@pytest.mark.parametrize("other", BACKENDS)
def test_a_loop_in_another_thread_is_woken(backend: str, other: str) -> None:
    ready, returned = threading.Event(), threading.Event()
    wakeups: list[Wakeup] = []

    async def theirs() -> None:
        wakeups.append(new_wakeup())
        ready.set()
        assert not await wakeups[0].wait(LONG_S, anyio.sleep_forever)
        returned.set()

    async def ours() -> None:
        assert ready.wait(60)
        wakeups[0].set()

    thread = threading.Thread(target=run, args=(other, theirs))
    thread.start()
    run(backend, ours)
    assert returned.wait(60)
    thread.join()
    wakeups[0].set()


def test_wakeup_of_a_closed_loop_is_harmless(backend: str) -> None:
    wakeups: list[Wakeup] = []

    async def make() -> None:
        wakeups.append(new_wakeup())

    thread = threading.Thread(target=run, args=(backend, make))
    thread.start()
    thread.join()
    wakeups[0].set()


def test_asyncio_listens_only_to_longer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short wait ends before disconnects are watched; the rest of a long one is watched."""

    async def scenario() -> None:
        returned: list[str] = []

        async def leaves() -> None:
            returned.append("listened")

        wakeup = new_wakeup()
        async with anyio.create_task_group() as group:
            group.start_soon(wakeup.wait, LONG_S, leaves)
            await anyio.wait_all_tasks_blocked()
            wakeup.set()
        assert not await new_wakeup().wait(0.001, leaves)
        assert not returned
        monkeypatch.setattr("autoglm_throttle._runtime.wakeup.DISCONNECT_WATCH_DELAY_S", 0.001)
        assert await new_wakeup().wait(LONG_S, leaves)
        assert returned == ["listened"]

    run("asyncio", scenario)
