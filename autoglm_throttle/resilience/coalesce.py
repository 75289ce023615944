"""One live call for all who want the same: the others wait for its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

from autoglm_throttle.resilience.feature import UNSET, Unset

T = TypeVar("T")


class _Bell(Protocol):
    def set(self) -> object: ...


B = TypeVar("B", bound=_Bell)


class _Flight(Generic[T, B]):
    """One live call; without a result when it has landed, if it was cancelled."""

    __slots__ = ("landed", "result")

    def __init__(self, landed: B) -> None:
        self.landed: B = landed
        self.result: T | Unset = UNSET


_LEADING: ContextVar[tuple[object, ...]] = ContextVar("autoglm_throttle_leading", default=())
"""The flights that this call is a part of: a function that calls itself must not wait for its own end."""


class Flights(Generic[T]):
    """The live calls under way.

    Threads share theirs with the whole process; tasks share theirs with those of the same event loop, as no
    other loop can wake them. Whoever finds no call with its key under way makes one. When it ends, all who
    waited have its result; when it was cancelled, they start over, and the first of them makes the next one.
    So nobody is handed anything that could be lost with him.
    """

    __slots__ = ("_tasks", "_threads")

    def __init__(self) -> None:
        self._threads: dict[Hashable, _Flight[T, threading.Event]] = {}
        self._tasks: dict[tuple[object, Hashable], _Flight[T, _AsyncBell]] = {}

    def __len__(self) -> int:
        return len(self._threads) + len(self._tasks)

    def under_way(self, key: Hashable) -> bool:
        """Whether a thread is making the call."""
        return key in self._threads

    def under_way_async(self, key: Hashable) -> bool:
        """Whether a task of the running loop is making the call."""
        return bool(self._tasks) and (_loop(), key) in self._tasks

    def share(self, key: Hashable, call: Callable[[], T]) -> tuple[T, bool]:
        """Make the call, or wait for the thread that is making it.

        Returns:
            The result, and whether it is of our own call.
        """
        mine: _Flight[T, threading.Event] = _Flight(threading.Event())
        while True:
            flight = self._threads.setdefault(key, mine)
            if flight is mine:
                with _Lead(self._threads, key, mine):
                    mine.result = result = call()
                return result, True
            if flight in _LEADING.get():
                return call(), True
            flight.landed.wait()
            if not isinstance(flight.result, Unset):
                return flight.result, False

    async def share_async(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Make the call, or wait for the task that is making it.

        Returns:
            The result, and whether it is of our own call.
        """
        import anyio

        place = (_loop(), key)
        while True:
            flight = self._tasks.get(place)
            if flight is None:
                mine: _Flight[T, _AsyncBell] = _Flight(anyio.Event())
                self._tasks[place] = mine
                with _Lead(self._tasks, place, mine):
                    mine.result = result = await call()
                return result, True
            if flight in _LEADING.get():
                return await call(), True
            await flight.landed.wait()
            if not isinstance(flight.result, Unset):
                return flight.result, False

    def forget(self) -> None:
        """In a forked process: the threads and the loops that make these calls are not here."""
        self._threads = {}
        self._tasks = {}


class _AsyncBell(_Bell, Protocol):
    async def wait(self) -> object: ...


K = TypeVar("K", bound=Hashable)


class _Lead(Generic[K, T, B]):
    """The time in which one makes the call for all; at its end the others wake, whatever has happened."""

    __slots__ = ("_flight", "_flights", "_key", "_token")

    def __init__(self, flights: dict[K, _Flight[T, B]], key: K, flight: _Flight[T, B]) -> None:
        self._flights = flights
        self._key = key
        self._flight = flight

    def __enter__(self) -> None:
        self._token = _LEADING.set((*_LEADING.get(), self._flight))

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):  # the coroutine was thrown away, and is closed in another context
            _LEADING.reset(self._token)
        del self._flights[self._key]
        with suppress(RuntimeError):  # its loop has ended, and all who waited with it
            self._flight.landed.set()


def _loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        return current_trio_token()
