"""Single flight: each caller has its own time limit and its own exception."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
import pytest

from autoglm_throttle.resilience.single_flight import copy_exception
from tests.loops import run
from tests.resilience.coalescing import FOR_S, IN_VAIN, Calls, Flights, settle


def test_waiter_past_its_limit_makes_its_own_call(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()

        async def own_call() -> int:
            return 7

        async with anyio.create_task_group() as group:
            group.start_soon(flights.call_async, "key", calls)
            await settle()
            with anyio.fail_after(FOR_S):
                assert await flights.call_async("key", own_call, 0.001) == (7, True)
            assert await flights.is_in_flight_async("key")
            calls.go.set()
        assert len(flights) == 0

    run(backend, task)


def test_a_limit_that_is_not_reached_changes_nothing(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        results: list[tuple[int, bool]] = []

        async def want() -> None:
            results.append(await flights.call_async("key", calls, FOR_S))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(want)
            await settle()
            calls.go.set()
        assert sorted(results) == [(1, False), (1, False), (1, True)]

    run(backend, task)


def test_cancellation_while_waiting_is_not_a_timeout(backend: str) -> None:
    async def task() -> None:
        flights = Flights()
        calls = Calls()
        impatient = anyio.CancelScope()

        async def leave() -> None:
            with impatient:
                await flights.call_async("key", calls, FOR_S)

        async with anyio.create_task_group() as group:
            group.start_soon(flights.call_async, "key", calls)
            await settle()
            group.start_soon(leave)
            await settle()
            impatient.cancel()
            await settle()
            assert impatient.cancelled_caught
            assert calls.made == 1
            calls.go.set()

    run(backend, task)


def test_result_for_no_other_lets_waiters_take_turns(backend: str) -> None:
    async def task() -> None:
        flights = Flights(lambda _: False)
        calls = Calls()
        results: list[tuple[int, bool]] = []

        async def want() -> None:
            results.append(await flights.call_async("key", calls))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(want)
            for made in range(1, 6):
                await settle(20)
                assert calls.made == made
                calls.go.set()
                calls.go = anyio.Event()
        assert sorted(results) == [(made, True) for made in range(1, 6)]
        assert len(flights) == 0

    run(backend, task)


def test_callers_that_waited_in_vain_share_one_further_call(backend: str) -> None:
    """FIELD 7: each of them made a call of its own."""

    async def task() -> None:
        flights = Flights()
        calls = Calls()
        results: list[tuple[int, bool]] = []

        async def want() -> None:
            results.append(await flights.call_async("key", calls, 0.01))
            if len(results) == 99:  # the hundredth hangs, as the first does
                assert (calls.made, results) == (2, [IN_VAIN] * 99)
                calls.go.set()

        async with anyio.create_task_group() as group:
            group.start_soon(flights.call_async, "key", calls)
            await settle()
            for _ in range(100):
                group.start_soon(want)
        assert results[99:] == [(2, True)]

    run(backend, task)


class Ends:
    """Plain calls that end when they are let go, one after the other."""

    def __init__(self, shares: Callable[[int], bool] = lambda _: True) -> None:
        self.flights = Flights(shares)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.made = 0
        self.results: list[tuple[int, bool]] = []

    def call(self) -> int:
        """A call."""
        self.made += 1
        mine = self.made
        self.begun.release()
        assert self.go.acquire(timeout=FOR_S)
        return mine

    def want(self) -> None:
        """Have a result."""
        self.results.append(self.flights.call("key", self.call))

    def waiting(self, number: int) -> None:
        """Return when so many threads wait for a call."""
        pause = threading.Event()
        for _ in range(int(FOR_S / 0.001)):
            if self.flights.waiting == number:
                return
            pause.wait(0.001)
        raise AssertionError(f"{number} threads do not wait")


def test_thread_with_expired_wait_makes_its_own_call() -> None:
    ends = Ends()
    leader = threading.Thread(target=ends.want)
    leader.start()
    assert ends.begun.acquire(timeout=FOR_S)
    try:
        for limit_s in (0.0, 0.001):
            assert ends.flights.call("key", lambda: 7, limit_s) == (7, True)
        assert ends.flights.is_in_flight("key")
    finally:
        ends.go.release()
        leader.join(FOR_S)
    assert ends.results == [(1, True)]


def test_a_thread_has_another_s_result_within_its_limit() -> None:
    ends = Ends()
    leader = threading.Thread(target=ends.want)
    leader.start()
    assert ends.begun.acquire(timeout=FOR_S)
    results: list[tuple[int, bool]] = []
    follower = threading.Thread(target=lambda: results.append(ends.flights.call("key", lambda: 7, FOR_S)))
    follower.start()
    ends.waiting(1)
    ends.go.release()
    for thread in (leader, follower):
        thread.join(FOR_S)
    assert results == [(1, False)]


def test_threads_do_not_take_a_private_result() -> None:
    ends = Ends(lambda _: False)
    threads = [threading.Thread(target=ends.want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for waiting in (3, 2, 1, 0):
        assert ends.begun.acquire(timeout=FOR_S)
        ends.waiting(waiting)
        ends.go.release()
    for thread in threads:
        thread.join(FOR_S)
    assert sorted(ends.results) == [(1, True), (2, True), (3, True), (4, True)]


def raised(error: Exception) -> Exception:
    """An exception that was on its way."""

    def fail() -> None:
        raise error from KeyError("cause")

    try:
        fail()
    except Exception as caught:  # noqa: BLE001 - it is looked at
        return caught
    return error


def test_copied_exception_is_equal_and_independent() -> None:
    error = raised(OSError(2, "no such file", "there"))
    error.add_note("seen")
    trace = error.__traceback__
    first, second = copy_exception(error, trace), copy_exception(error, trace)
    for mine in (first, second):
        assert mine is not error
        assert (repr(mine), str(mine), mine.__notes__) == (repr(error), str(error), ["seen"])
        assert (mine.__cause__, mine.__context__) == (error.__cause__, error.__context__)
        assert (mine.__suppress_context__, mine.__traceback__) == (True, trace)
    first.add_note("mine")
    assert (error.__notes__, second.__notes__) == (["seen"], ["seen"])
    bare = copy_exception(ValueError(1), None)
    assert not hasattr(bare, "__notes__")
    assert (bare.__cause__, bare.__suppress_context__, bare.__traceback__) == (None, False, None)


class Picky(Exception):
    """An exception that cannot be rebuilt from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class Wordy(Exception):
    """Says more each time it is made."""

    def __init__(self, text: str) -> None:
        super().__init__(f"failed: {text}")


class Turning(Exception):
    """Its copy is something else."""

    def __copy__(self) -> str:
        return "a text"


@pytest.mark.parametrize("error", [Picky(code=1), Wordy("x"), Turning("x")])
def test_uncopyable_exception_is_shared(error: Exception) -> None:
    trace = raised(error).__traceback__
    raised(error)
    assert error.__traceback__ is not trace
    assert copy_exception(error, trace) is error
    assert error.__traceback__ is trace
