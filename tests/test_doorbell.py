"""The bell of one who waits: under asyncio and trio, from the same thread and from another."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from autoglm_throttle.doorbell import Doorbell, doorbell
from tests.loops import BACKENDS, run

LONG_S = 60.0


def test_a_bell_rung_in_the_same_loop_wakes_its_waiter(backend: str) -> None:
    async def scenario() -> None:
        bell = doorbell()
        heard: list[bool] = []

        async def waiter() -> None:
            heard.append(await bell.wait(LONG_S, anyio.sleep_forever))

        async with anyio.create_task_group() as group:
            group.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            bell.ring()
        assert heard == [False]

    run(backend, scenario)


def test_a_bell_rung_before_the_wait_is_heard(backend: str) -> None:
    async def scenario() -> None:
        bell = doorbell()
        bell.ring()
        assert not await bell.wait(LONG_S, anyio.sleep_forever)

    run(backend, scenario)


def test_a_bell_rung_long_before_the_wait_is_heard_at_once(backend: str) -> None:
    async def leaves() -> None:
        raise AssertionError("there is nothing to wait for")

    async def scenario() -> None:
        bell = doorbell()
        bell.ring()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert not await bell.wait(LONG_S, leaves)

    run(backend, scenario)


def test_a_bell_is_heard_that_was_rung_while_its_loop_stood_still() -> None:
    loop = asyncio.new_event_loop()
    bells: list[Doorbell] = []

    async def waiter() -> bool:
        bells.append(doorbell())
        return await bells[0].wait(LONG_S, anyio.sleep_forever)

    try:
        task = loop.create_task(waiter())
        loop.run_until_complete(asyncio.sleep(0.001))
        bells[0].ring()
        assert loop.run_until_complete(asyncio.wait_for(task, 60.0)) is False
    finally:
        loop.close()


def test_the_wait_ends_by_itself(backend: str) -> None:
    async def scenario() -> None:
        assert not await doorbell().wait(0.001, anyio.sleep_forever)
        assert not await doorbell().wait(-1.0, anyio.sleep_forever)

    run(backend, scenario)


def test_one_whose_client_has_gone_hears_of_it(backend: str) -> None:
    async def scenario() -> None:
        bell = doorbell()
        assert await bell.wait(LONG_S, anyio.lowlevel.checkpoint)
        bell.ring()

    run(backend, scenario)


def test_a_bell_rung_twice_or_too_late_does_nothing(backend: str) -> None:
    async def scenario() -> None:
        bell = doorbell()
        async with anyio.create_task_group() as group:
            group.start_soon(bell.wait, LONG_S, anyio.sleep_forever)
            await anyio.wait_all_tasks_blocked()
            bell.ring()
            bell.ring()
        bell.ring()
        await anyio.lowlevel.checkpoint()

    run(backend, scenario)


def test_the_task_goes_on_after_a_wait_as_if_nothing_had_been_cancelled(backend: str) -> None:
    async def scenario() -> None:
        bell = doorbell()
        bell_rung = False

        async def ring() -> None:
            nonlocal bell_rung
            bell.ring()
            bell_rung = True

        async with anyio.create_task_group() as group:
            group.start_soon(ring)
            await bell.wait(LONG_S, anyio.sleep_forever)
            await anyio.sleep(0.0)
        assert bell_rung
        if backend == "asyncio":
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    run(backend, scenario)


def test_a_cancelled_waiter_stays_cancelled(backend: str) -> None:
    async def scenario() -> None:
        bells: list[Doorbell] = []
        ended: list[str] = []

        async def waiter() -> None:
            bells.append(doorbell())
            try:
                await bells[0].wait(LONG_S, anyio.sleep_forever)
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


def test_an_error_of_the_one_who_listens_is_not_swallowed(backend: str) -> None:
    async def listen() -> None:
        raise TimeoutError("its own")

    async def scenario() -> None:
        with pytest.raises(TimeoutError, match="its own"):
            await doorbell().wait(LONG_S, listen)

    run(backend, scenario)


@pytest.mark.parametrize("other", BACKENDS)
def test_a_loop_in_another_thread_is_woken(backend: str, other: str) -> None:
    ready, heard = threading.Event(), threading.Event()
    bells: list[Doorbell] = []

    async def theirs() -> None:
        bells.append(doorbell())
        ready.set()
        assert not await bells[0].wait(LONG_S, anyio.sleep_forever)
        heard.set()

    async def ours() -> None:
        assert ready.wait(60)
        bells[0].ring()

    thread = threading.Thread(target=run, args=(other, theirs))
    thread.start()
    run(backend, ours)
    assert heard.wait(60)
    thread.join()
    bells[0].ring()


def test_a_bell_of_a_loop_that_has_ended_is_harmless(backend: str) -> None:
    bells: list[Doorbell] = []

    async def make() -> None:
        bells.append(doorbell())

    thread = threading.Thread(target=run, args=(backend, make))
    thread.start()
    thread.join()
    bells[0].ring()


def test_asyncio_listens_only_to_longer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short wait is over before anybody listens; what is left of a long one is listened to."""

    async def scenario() -> None:
        heard: list[str] = []

        async def leaves() -> None:
            heard.append("listened")

        bell = doorbell()
        async with anyio.create_task_group() as group:
            group.start_soon(bell.wait, LONG_S, leaves)
            await anyio.wait_all_tasks_blocked()
            bell.ring()
        assert not await doorbell().wait(0.001, leaves)
        assert not heard
        monkeypatch.setattr("autoglm_throttle.doorbell.DEAF_S", 0.001)
        assert await doorbell().wait(LONG_S, leaves)
        assert heard == ["listened"]

    run("asyncio", scenario)
