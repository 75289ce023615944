"""One live call for all who want the same: the others wait for its end."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from autoglm_throttle.resilience.feature import UNSET, Unset

T = TypeVar("T")


class _Bell(Protocol):
    def set(self) -> object: ...


B = TypeVar("B", bound=_Bell)

_IN_VAIN: Final = 2
"""Ends of calls that are of no use to one who waits; then he makes his own. One is what a single impatient
caller costs the others; were there no second limit, a dependency that hangs would have them wait in a row."""


class _Flight(Generic[T, B]):
    """One live call; without a result when it has landed, if it was cancelled or is for nobody else."""

    __slots__ = ("in_vain", "landed", "result")

    def __init__(self, landed: B) -> None:
        self.landed: B = landed
        self.result: T | Unset = UNSET
        self.in_vain = False
        """Whether it has ended with what is for nobody else."""

    def end(self, result: T, *, shared: bool) -> None:
        if shared:
            self.result = result
        else:
            self.in_vain = True


_LEADING: ContextVar[tuple[object, ...]] = ContextVar("autoglm_throttle_leading", default=())
"""The flights that this call is a part of: a function that calls itself must not wait for its own end."""


class Flights(Generic[T]):
    """The live calls under way.

    Threads share theirs with the whole process; tasks share theirs with those of the same event loop, as no
    other loop can wake them. Whoever finds no call with its key under way makes one. When it ends, all who
    waited have its result; when it was cancelled, or its result is for nobody else, they start over, and the
    first of them makes the next one. So nobody is handed anything that could be lost with him, and nobody
    has to do with the time limit of another: after two results that are of no use to him, or after his own
    limit, whoever waits makes a call of his own.

    Args:
        shares: whether a result is for all who waited, too; by default each one is. One that says that its
            caller's time is over should not be.
    """

    __slots__ = ("_shares", "_tasks", "_threads")

    def __init__(self, shares: Callable[[T], bool] = lambda _: True) -> None:
        self._shares = shares
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

    def share(self, key: Hashable, call: Callable[[], T], limit_s: float | None = None) -> tuple[T, bool]:
        """Make the call, or wait for the thread that is making it.

        Args:
            key: of the call.
            call: makes it.
            limit_s: seconds to wait for others at most, 0 or more; None: any.

        Returns:
            The result, and whether it is of our own call.
        """
        mine: _Flight[T, threading.Event] = _Flight(threading.Event())
        end_s = None if limit_s is None else monotonic() + limit_s
        in_vain = 0
        while in_vain < _IN_VAIN:
            flight = self._threads.setdefault(key, mine)
            if flight is mine:
                with _Lead(self._threads, key, mine):
                    result = call()
                    mine.end(result, shared=self._shares(result))
                return result, True
            if flight in _LEADING.get():
                break
            left_s = None if end_s is None else max(0.0, end_s - monotonic())
            landed = flight.landed.wait(left_s)
            if not isinstance(flight.result, Unset):
                return flight.result, False
            if not landed:
                break
            in_vain += flight.in_vain
        return call(), True

    async def share_async(
        self, key: Hashable, call: Callable[[], Awaitable[T]], limit_s: float | None = None
    ) -> tuple[T, bool]:
        """Make the call, or wait for the task that is making it.

        Args:
            key: of the call.
            call: makes it.
            limit_s: seconds to wait for others at most, 0 or more; None: any.

        Returns:
            The result, and whether it is of our own call.
        """
        import anyio

        place = (_loop(), key)
        end_s = None if limit_s is None else anyio.current_time() + limit_s
        in_vain = 0
        while in_vain < _IN_VAIN:
            flight = self._tasks.get(place)
            if flight is None:
                mine: _Flight[T, _AsyncBell] = _Flight(anyio.Event())
                self._tasks[place] = mine
                with _Lead(self._tasks, place, mine):
                    result = await call()
                    mine.end(result, shared=self._shares(result))
                return result, True
            if flight in _LEADING.get():
                break
            landed = await _landed(flight.landed, end_s)
            if not isinstance(flight.result, Unset):
                return flight.result, False
            if not landed:
                break
            in_vain += flight.in_vain
        return await call(), True

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


def own(error: Exception, trace: TracebackType | None) -> Exception:
    """One's own of an exception that several raise: causes, notes and tracebacks are nobody else's then.

    Where a class cannot be copied, or its copy says something else, it is the same exception for all.

    Args:
        error: of the call that was made for all.
        trace: where it came from; each who raises it begins with this one.
    """
    try:
        mine = copy.copy(error)
        if type(mine) is not type(error) or mine.args != error.args:
            return error.with_traceback(trace)
        mine.__cause__, mine.__context__ = error.__cause__, error.__context__
        mine.__suppress_context__ = error.__suppress_context__
        if hasattr(error, "__notes__"):
            mine.__notes__ = [*error.__notes__]
    except Exception:  # noqa: BLE001 - whatever the user's class raises
        return error.with_traceback(trace)
    return mine.with_traceback(trace)


async def _landed(bell: _AsyncBell, end_s: float | None) -> bool:
    """Wait for the end of a call until then at most; whether it has come."""
    import anyio

    if end_s is None:
        await bell.wait()
        return True
    with anyio.CancelScope(deadline=end_s) as limit:
        await bell.wait()
    return not limit.cancelled_caught


def _loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        return current_trio_token()
