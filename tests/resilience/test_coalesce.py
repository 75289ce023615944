"""Single flight: one live call for equal requests of threads and tasks, also with cancelled leaders."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loops import run
from tests.resilience.coalescing import FOR_S, Calls, Flights, settle


def test_all_waiters_share_the_result_of_one_call(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        results: list[tuple[int, bool]] = []

        async def want() -> None:
            results.append(await flights.call_async("key", calls))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(want)
            await settle()
            assert await flights.is_in_flight_async("key")
            assert not await flights.is_in_flight_async("other")
            assert not flights.is_in_flight("key")
            calls.go.set()
        assert calls.made == 1
        assert sorted(results) == [(1, False)] * 19 + [(1, True)]
        assert len(flights) == 0
        assert not await flights.is_in_flight_async("key")

    run(backend, task)


def test_other_keys_have_other_calls(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        async with anyio.create_task_group() as group:
            for key in "abab":
                group.start_soon(flights.call_async, key, calls)
            await settle()
            assert (calls.made, len(flights)) == (2, 2)
            calls.go.set()

    run(backend, task)


def test_caller_after_the_end_makes_its_own_call(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        calls.go.set()
        assert await flights.call_async("key", calls) == (1, True)
        assert await flights.call_async("key", calls) == (2, True)

    run(backend, task)


def test_cancelled_leader_is_replaced_by_a_waiter(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        results: list[tuple[int, bool]] = []
        leader = anyio.CancelScope()

        async def lead() -> None:
            with leader:
                await flights.call_async("key", calls)

        async def want() -> None:
            results.append(await flights.call_async("key", calls))

        async with anyio.create_task_group() as group:
            group.start_soon(lead)
            await settle()
            for _ in range(5):
                group.start_soon(want)
            await settle()
            assert calls.made == 1
            leader.cancel()
            await settle(20)
            assert calls.made == 2
            calls.go.set()
        assert sorted(results) == [(2, False)] * 4 + [(2, True)]
        assert calls.most == 1

    run(backend, task)


def test_cancelled_waiter_is_harmless(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        results: list[tuple[int, bool]] = []
        impatient = anyio.CancelScope()

        async def leave() -> None:
            with impatient:
                await flights.call_async("key", calls)

        async def want() -> None:
            results.append(await flights.call_async("key", calls))

        async with anyio.create_task_group() as group:
            group.start_soon(want)
            await settle()
            group.start_soon(leave)
            group.start_soon(want)
            await settle()
            impatient.cancel()
            await settle()
            assert impatient.cancelled_caught
            calls.go.set()
        assert sorted(results) == [(1, False), (1, True)]

    run(backend, task)


def test_waiter_keeps_its_own_timeout(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        async with anyio.create_task_group() as group:
            group.start_soon(flights.call_async, "key", calls)
            await settle()
            with pytest.raises(TimeoutError), anyio.fail_after(0.001):
                await flights.call_async("key", calls)
            calls.go.set()
        assert calls.made == 1

    run(backend, task)


def test_exception_is_raised_to_the_leader_and_others_retry(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        go = anyio.Event()
        made: list[int] = []
        results: list[int] = []

        async def call() -> int:
            made.append(len(made))
            await go.wait()
            if len(made) == 1:
                raise KeyError("x")
            return len(made)

        async def want() -> None:
            try:
                results.append((await flights.call_async("key", call))[0])
            except KeyError:
                results.append(-1)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(want)
            await settle()
            go.set()
        assert results == [-1, 2, 2]

    run(backend, task)


def test_a_function_that_calls_itself_does_not_wait_for_itself(backend: str) -> None:
    async def task() -> None:
        flights = Flights()

        async def inner() -> int:
            return 1

        async def outer() -> int:
            nested, ours = await flights.call_async("key", inner)
            assert ours
            return nested + 1

        async def outermost() -> int:
            return (await flights.call_async("other", outer))[0] + 1

        with anyio.fail_after(FOR_S):
            assert await flights.call_async("key", outermost) == (3, True)

    run(backend, task)


def test_recursive_function_does_not_wait_for_itself() -> None:
    flights = Flights()
    assert flights.call("key", lambda: flights.call("key", lambda: 1)[0] + 1) == (2, True)
    assert len(flights) == 0


def test_the_tasks_of_another_loop_have_a_call_of_their_own() -> None:
    flights = Flights()
    inside, done = threading.Barrier(2), threading.Barrier(2)
    results: list[tuple[int, bool]] = []

    def loop(backend: str, value: int) -> None:
        async def call() -> int:
            await anyio.to_thread.run_sync(inside.wait, FOR_S)
            await anyio.to_thread.run_sync(done.wait, FOR_S)
            return value

        async def task() -> None:
            with anyio.fail_after(FOR_S):
                results.append(await flights.call_async("key", call))

        run(backend, task)

    threads = [threading.Thread(target=loop, args=each) for each in (("asyncio", 1), ("trio", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * FOR_S)
    assert sorted(results) == [(1, True), (2, True)]


def test_a_loop_that_ends_in_mid_flight_leaves_nothing_behind() -> None:
    flights = Flights()

    async def never() -> int:
        await asyncio.get_running_loop().create_future()
        return 1

    def throw_away() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # a pending task is destroyed
        tasks = [loop.create_task(flights.call_async("key", never)) for _ in range(2)]
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert len(flights) == 1
        loop.close()
        for task in tasks:
            coroutine = task.get_coro()
            assert coroutine is not None
            coroutine.close()

    throw_away()
    assert len(flights) == 0


class Callers:
    """Callers that come, go, and are let go, in any order."""

    def __init__(self) -> None:
        self.flights = Flights()
        self.calls = Calls()
        self.scopes: list[anyio.CancelScope] = []
        self.ended = 0

    async def want(self, scope: anyio.CancelScope) -> None:
        """Have a result, or be cancelled."""
        with scope:
            assert (await self.flights.call_async("key", self.calls))[0] >= 1
        self.ended += 1

    async def do(self, group: TaskGroup, verb: str, which: int) -> None:
        """One thing that happens."""
        if verb == "want":
            self.scopes.append(anyio.CancelScope())
            group.start_soon(self.want, self.scopes[-1])
        elif verb == "cancel" and self.scopes:
            self.scopes[which % len(self.scopes)].cancel()
        elif verb == "end":
            self.calls.go.set()
            self.calls.go = anyio.Event()
        else:
            await settle(which)


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(st.tuples(st.sampled_from(["want", "cancel", "end", "pass"]), st.integers(0, 9)), max_size=30),
    st.sampled_from(["asyncio", "trio"]),
)
def test_no_waiter_is_lost_by_any_cancellation(deeds: list[tuple[str, int]], backend: str) -> None:
    """Calls never overlap, and all remaining callers have a result."""

    async def task() -> None:
        callers = Callers()
        with anyio.fail_after(FOR_S):
            async with anyio.create_task_group() as group:
                for verb, which in deeds:
                    await callers.do(group, verb, which)
                while callers.ended < len(callers.scopes):
                    callers.calls.go.set()
                    await checkpoint()
        assert callers.calls.most <= 1
        assert len(callers.flights) == 0

    run(backend, task)


# Threads.


def test_threads_share_one_call() -> None:
    flights = Flights()
    begun, go = threading.Event(), threading.Event()
    made: list[int] = []
    results: list[tuple[int, bool]] = []

    def call() -> int:
        made.append(1)
        begun.set()
        go.wait(FOR_S)
        return len(made)

    threads = [threading.Thread(target=lambda: results.append(flights.call("key", call))) for _ in range(8)]
    threads[0].start()
    assert begun.wait(FOR_S)
    assert flights.is_in_flight("key")
    assert not flights.is_in_flight("other")
    for thread in threads[1:]:
        thread.start()
    let_go(flights, waiting=7, go=go)
    for thread in threads:
        thread.join(FOR_S)
    assert sorted(results) == [(1, False)] * 7 + [(1, True)]
    assert len(flights) == 0


def test_thread_with_an_aborted_call_is_replaced() -> None:
    class Stop(BaseException):
        pass

    flights = Flights()
    begun, go = threading.Event(), threading.Event()
    made: list[int] = []
    results: list[tuple[int, bool] | str] = []

    def call() -> int:
        made.append(1)
        if len(made) == 1:
            begun.set()
            go.wait(FOR_S)
            raise Stop
        return len(made)

    def want() -> None:
        try:
            results.append(flights.call("key", call))
        except Stop:
            results.append("stopped")

    threads = [threading.Thread(target=want) for _ in range(4)]
    threads[0].start()
    assert begun.wait(FOR_S)
    for thread in threads[1:]:
        thread.start()
    let_go(flights, waiting=3, go=go)
    for thread in threads:
        thread.join(FOR_S)
    assert results.count("stopped") == 1
    assert len(results) == 4
    assert len(flights) == 0


def let_go(flights: Flights, waiting: int, go: threading.Event) -> None:
    """Let the call end when so many threads wait for it."""
    poll(lambda: flights.waiting == waiting)
    go.set()


def poll(there: Callable[[], bool]) -> None:
    """Wait until something is there."""
    pause = threading.Event()
    for _ in range(int(FOR_S / 0.001)):
        if there():
            return
        pause.wait(0.001)
    pytest.fail("it is not there")


def test_thread_rounds_make_one_call_at_a_time_and_lose_none() -> None:
    flights = Flights()
    under_way = most = 0
    count = threading.Lock()

    def call() -> int:
        nonlocal under_way, most
        with count:
            under_way += 1
            most = max(most, under_way)
        threading.Event().wait(0.0002)
        with count:
            under_way -= 1
        return 1

    barrier = threading.Barrier(8)
    results: list[int] = []

    def want() -> None:
        for _ in range(100):
            barrier.wait(FOR_S)
            results.append(flights.call("key", call)[0])

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * FOR_S)
    assert len(results) == 800
    assert most == 1


def test_cancelled_leader_rounds_lose_no_waiter(backend: str) -> None:
    """Each round five leaders in a row are cancelled, and five others see the end."""

    async def task() -> None:
        flights = Flights()
        for _ in range(100):
            calls = Calls()
            scopes = [anyio.CancelScope() for _ in range(10)]
            results: list[int] = []

            async def want(
                scope: anyio.CancelScope, calls: Calls = calls, results: list[int] = results
            ) -> None:
                with scope:
                    results.append((await flights.call_async("key", calls))[0])

            async with anyio.create_task_group() as group:
                for scope in scopes:
                    group.start_soon(want, scope)
                for scope in scopes[:5]:
                    await settle(2)
                    scope.cancel()
                await settle()
                calls.go.set()
            assert len(results) == 5
            assert len({*results}) == 1
            assert calls.most == 1

    run(backend, task)
