"""The virtual event loop: its time is a clock, it never waits, and unsupported calls raise."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.testing import ManualClock
from autoglm_throttle.traffic.inproc import VirtualClock, VirtualLoop, VirtualTimeError
from autoglm_throttle.traffic.inproc.loop import UNSUPPORTED


def run(main: Coroutine[Any, Any, Any], clock: VirtualClock | ManualClock | None = None) -> Any:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)


def elapsed_s() -> float:
    return asyncio.get_running_loop().time()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30))
def test_timers_run_in_order_at_their_exact_time(delays_s: list[float]) -> None:
    clock = ManualClock()
    rung: list[tuple[float, float]] = []

    def ring(due_s: float) -> None:
        rung.append((due_s, clock()))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for delay_s in delays_s:
            loop.call_at(begun_s + delay_s, ring, begun_s + delay_s)
        await asyncio.sleep(max(delays_s) + 1.0)

    run(main(), clock)
    assert [due_s for due_s, _ in rung] == sorted(1000.0 + delay_s for delay_s in delays_s)
    assert all(abs(at_s - due_s) <= 1e-6 for due_s, at_s in rung)
    assert clock() == pytest.approx(1000.0 + max(delays_s) + 1.0)


def test_ready_callbacks_run_before_time_advances() -> None:
    async def main() -> list[float]:
        seen = []
        for _ in range(100):
            await asyncio.sleep(0)
            seen.append(elapsed_s())
        return seen

    assert set(run(main())) == {1000.0}


def test_timeouts_of_asyncio_and_anyio_come_when_they_are_due() -> None:
    async def main() -> list[float]:
        seen = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.sleep(60.0)
        seen.append(elapsed_s())
        with pytest.raises(TimeoutError):
            with anyio.fail_after(3.0):
                await anyio.sleep(60.0)
        seen.append(elapsed_s())
        with anyio.move_on_after(4.0) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        seen.append(elapsed_s())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5.0)
        seen.append(elapsed_s())
        return seen

    assert run(main()) == pytest.approx([1002.0, 1005.0, 1009.0, 1014.0])


def test_standstill_names_the_waiting_tasks() -> None:
    async def ponder() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        tasks = [asyncio.create_task(ponder(), name=f"thinker {number:02}") for number in range(12)]
        await asyncio.gather(*tasks)

    with pytest.raises(RuntimeError) as found:
        run(main())
    text = str(found.value)
    assert text.startswith("nothing is ready and no timer is set; these tasks wait forever: ")
    assert "thinker 00 (" in text
    assert "ponder)" in text
    assert text.endswith(" and 3 more")


def test_standstill_without_tasks_is_reported() -> None:
    loop = VirtualLoop()
    with pytest.raises(RuntimeError, match="no task waits"):
        loop.run_until_complete(loop.create_future())
    loop.close()


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_sockets_and_subprocesses_are_rejected(name: str) -> None:
    async def main() -> None:
        getattr(asyncio.get_running_loop(), name)(None, None)

    with pytest.raises(VirtualTimeError, match=f"{name} was called: .* virtual time"):
        run(main())


def test_nothing_of_sockets_and_processes_is_forgotten() -> None:
    outside = {
        name
        for name, _ in inspect.getmembers(asyncio.AbstractEventLoop, inspect.isfunction)
        if name.startswith(("sock_", "create_", "connect_", "subprocess_", "get", "add_", "send", "start_"))
    }
    inside = {"create_task", "create_future", "get_debug", "get_exception_handler", "get_task_factory"}
    assert outside - inside <= set(UNSUPPORTED)
    assert all(hasattr(asyncio.AbstractEventLoop, name) for name in UNSUPPORTED)


def test_caught_rejection_still_ends_the_loop() -> None:
    async def main() -> str:
        with contextlib.suppress(RuntimeError):
            await asyncio.open_connection("localhost", 80)
        await asyncio.sleep(1.0)
        return "went on"

    with pytest.raises(VirtualTimeError, match="create_connection"):
        run(main())


@pytest.mark.parametrize("through", [asyncio.to_thread, anyio.to_thread.run_sync])
def test_threads_are_rejected_before_the_start(through: Any) -> None:
    called: list[int] = []

    async def main() -> None:
        await through(lambda: called.append(1))

    before = set(threading.enumerate())
    with pytest.raises(
        VirtualTimeError, match="make the endpoint, dependency or background task 'async def'"
    ):
        run(main())
    assert not called
    assert set(threading.enumerate()) <= before


def test_call_from_another_thread_ends_the_loop() -> None:
    caught: list[Exception] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except VirtualTimeError as error:
                caught.append(error)

        other = threading.Thread(target=call, name="intruder")
        other.start()
        other.join()
        await asyncio.sleep(1.0)

    with pytest.raises(VirtualTimeError, match="'intruder'"):
        run(main())
    assert len(caught) == 1


def test_its_own_thread_may_call_as_if_it_were_another() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        loop.call_soon_threadsafe(called.set_result, "here")
        assert await called == "here"

    run(main())


def test_a_loop_may_run_again() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(1.0))
        runner.run(asyncio.sleep(1.0))
        assert runner.get_loop().time() == pytest.approx(1002.0)
