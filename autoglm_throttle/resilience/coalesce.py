"""Single flight: concurrent calls with one key share one live call and wait for its result."""

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
"""Number of unshared results after which a waiter makes its own call.

One is the cost of a single impatient caller. Without the limit, a dependency that hangs would make all
waiters call one after the other.
"""


class _Flight(Generic[T, B]):
    """One live call; it ends without a result if it was cancelled or its result is not shared."""

    __slots__ = ("in_vain", "landed", "result")

    def __init__(self, landed: B) -> None:
        self.landed: B = landed
        self.result: T | Unset = UNSET
        self.in_vain = False
        """Whether it has ended with a result that is not shared."""

    def end(self, result: T, *, shared: bool) -> None:
        if shared:
            self.result = result
        else:
            self.in_vain = True


_LEADING: ContextVar[tuple[object, ...]] = ContextVar("autoglm_throttle_leading", default=())
"""Shared calls that contain the current call: a recursive function must not wait for its own end."""


class Flights(Generic[T]):
    """The live calls in flight.

    Threads share calls within the process, tasks within their event loop, since no other loop can wake them.
    The first caller of a key makes the call. All waiters get its result. If it was cancelled or its result is
    not shared, they start over, and the first of them makes the next call. A waiter makes its own call after
    two unshared results or after its own time limit, so no caller depends on another's time limit.

    Args:
        is_shareable: whether waiters may use a result; by default always. A time-out of the caller should not
            be shared.
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
            limit_s: maximum wait for other callers in seconds, 0 or more; None: no limit.

        Returns:
            The result, and whether it comes from the own call.
        """
        mine: _Flight[T, threading.Event] = _Flight(threading.Event())
        end_s = None if limit_s is None else monotonic() + limit_s
        in_vain = 0
        while in_vain < _IN_VAIN:
            # `setdefault` is atomic: of several threads exactly one becomes the leader.
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
            limit_s: maximum wait for other callers in seconds, 0 or more; None: no limit.

        Returns:
            The result, and whether it comes from the own call.
        """
        import anyio

        place = (_loop(), key)
        end_s = None if limit_s is None else anyio.current_time() + limit_s
        in_vain = 0
        while in_vain < _IN_VAIN:
            # No await between look-up and insertion, so exactly one task of the loop becomes the leader.
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

    def reset_after_fork(self) -> None:
        """Drop all calls in a forked child: their threads and loops do not exist here."""
        self._threads = {}
        self._tasks = {}


class _AsyncBell(_Bell, Protocol):
    async def wait(self) -> object: ...


K = TypeVar("K", bound=Hashable)


class _Lead(Generic[K, T, B]):
    """Context in which one caller makes the shared call; at its end all waiters wake, even after an error."""

    __slots__ = ("_flight", "_flights", "_key", "_token")

    def __init__(self, flights: dict[K, _Flight[T, B]], key: K, flight: _Flight[T, B]) -> None:
        self._flights = flights
        self._key = key
        self._flight = flight

    def __enter__(self) -> None:
        self._token = _LEADING.set((*_LEADING.get(), self._flight))

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):  # a dropped coroutine is closed in another context
            _LEADING.reset(self._token)
        # Remove before waking: a waiter that starts over must not find this call again.
        del self._flights[self._key]
        with suppress(RuntimeError):  # its loop has ended, and so have its waiters
            self._flight.landed.set()


def own(error: Exception, trace: TracebackType | None) -> Exception:
    """Copy a shared exception so that each waiter gets its own traceback, cause and notes.

    If a class cannot be copied, or the copy has other arguments, all waiters share the exception.

    Args:
        error: of the shared call.
        trace: its traceback; each waiter starts with it.
    """
    try:
        mine = copy.copy(error)
        # copy.copy rebuilds an exception from its args, which loses data if __init__ takes others.
        if type(mine) is not type(error) or mine.args != error.args:
            return error.with_traceback(trace)
        mine.__cause__, mine.__context__ = error.__cause__, error.__context__
        mine.__suppress_context__ = error.__suppress_context__
        if hasattr(error, "__notes__"):
            mine.__notes__ = [*error.__notes__]
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return error.with_traceback(trace)
    return mine.with_traceback(trace)


async def _landed(bell: _AsyncBell, end_s: float | None) -> bool:
    """Wait for the end of a call, until ``end_s`` at most; return whether it has ended."""
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
