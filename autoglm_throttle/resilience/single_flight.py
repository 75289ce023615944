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


class _Event(Protocol):
    def set(self) -> object: ...


B = TypeVar("B", bound=_Event)

_MAX_UNSHARED_RESULTS: Final = 2
"""Number of unshared results after which a waiter makes its own call.

One is the cost of a single impatient caller. Without the limit, a dependency that hangs would make all
waiters call one after the other.
"""


class _SharedCall(Generic[T, B]):
    """One live call; it ends without a result if it was cancelled or its result is not shared."""

    __slots__ = ("done", "is_unshared", "result", "waiters")

    def __init__(self, done: B) -> None:
        self.done: B = done
        self.result: T | Unset = UNSET
        self.is_unshared = False
        """Whether it has ended with a result that is not shared."""
        self.waiters: int = 0
        """Other threads that wait for the end."""

    def end(self, result: T, *, shared: bool) -> None:
        if shared:
            self.result = result
        else:
            self.is_unshared = True


_CURRENT_CALLS: ContextVar[tuple[object, ...]] = ContextVar("autoglm_throttle_current_calls", default=())
"""Shared calls that contain the current call: a recursive function must not wait for its own end."""


class SingleFlight(Generic[T]):
    """The live calls in flight.

    Threads share calls within the process, tasks within their event loop, since no other loop can wake them.
    The first caller of a key makes the call. All waiters get its result. If it was cancelled or its result is
    not shared, they start over, and the first of them makes the next call. A waiter makes its own call after
    two unshared results or after its own time limit, so no caller depends on another's time limit.

    Args:
        is_shareable: whether waiters may use a result; by default always. A time-out of the caller should not
            be shared.
    """

    __slots__ = ("_is_shareable", "_task_calls", "_thread_calls")

    def __init__(self, is_shareable: Callable[[T], bool] = lambda _: True) -> None:
        self._is_shareable = is_shareable
        self._thread_calls: dict[Hashable, _SharedCall[T, threading.Event]] = {}
        self._task_calls: dict[tuple[object, Hashable], _SharedCall[T, _AsyncEvent]] = {}

    def __len__(self) -> int:
        return len(self._thread_calls) + len(self._task_calls)

    @property
    def waiting(self) -> int:
        """Number of threads that wait for the call of another one."""
        return sum(shared_call.waiters for shared_call in list(self._thread_calls.values()))

    def in_flight(self, key: Hashable) -> bool:
        """Whether a thread is making the call."""
        return key in self._thread_calls

    def in_flight_async(self, key: Hashable) -> bool:
        """Whether a task of the running loop is making the call."""
        return bool(self._task_calls) and (_loop(), key) in self._task_calls

    def run(self, key: Hashable, call: Callable[[], T], limit_s: float | None = None) -> tuple[T, bool]:
        """Make the call, or wait for the thread that is making it.

        Args:
            key: of the call.
            call: makes it.
            limit_s: maximum wait for other callers in seconds, 0 or more; None: no limit.

        Returns:
            The result, and whether it comes from the own call.
        """
        own_call: _SharedCall[T, threading.Event] = _SharedCall(threading.Event())
        end_s = None if limit_s is None else monotonic() + limit_s
        unshared = 0
        while unshared < _MAX_UNSHARED_RESULTS:
            # `setdefault` is atomic: of several threads exactly one becomes the leader.
            shared_call = self._thread_calls.setdefault(key, own_call)
            if shared_call is own_call:
                with _Leader(self._thread_calls, key, own_call):
                    result = call()
                    own_call.end(result, shared=self._is_shareable(result))
                return result, True
            if shared_call in _CURRENT_CALLS.get():
                break
            left_s = None if end_s is None else max(0.0, end_s - monotonic())
            shared_call.waiters += 1
            done = shared_call.done.wait(left_s)
            shared_call.waiters -= 1
            if not isinstance(shared_call.result, Unset):
                return shared_call.result, False
            if not done:
                break
            unshared += shared_call.is_unshared
        return call(), True

    async def run_async(
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

        task_key = (_loop(), key)
        end_s = None if limit_s is None else anyio.current_time() + limit_s
        unshared = 0
        while unshared < _MAX_UNSHARED_RESULTS:
            # No await between look-up and insertion, so exactly one task of the loop becomes the leader.
            shared_call = self._task_calls.get(task_key)
            if shared_call is None:
                own_call: _SharedCall[T, _AsyncEvent] = _SharedCall(anyio.Event())
                self._task_calls[task_key] = own_call
                with _Leader(self._task_calls, task_key, own_call):
                    result = await call()
                    own_call.end(result, shared=self._is_shareable(result))
                return result, True
            if shared_call in _CURRENT_CALLS.get():
                break
            done = await _wait_until(shared_call.done, end_s)
            if not isinstance(shared_call.result, Unset):
                return shared_call.result, False
            if not done:
                break
            unshared += shared_call.is_unshared
        return await call(), True


class _AsyncEvent(_Event, Protocol):
    async def wait(self) -> object: ...


K = TypeVar("K", bound=Hashable)


class _Leader(Generic[K, T, B]):
    """Context in which one caller makes the shared call; at its end all waiters wake, even after an error."""

    __slots__ = ("_key", "_shared_call", "_shared_calls", "_token")

    def __init__(
        self, shared_calls: dict[K, _SharedCall[T, B]], key: K, shared_call: _SharedCall[T, B]
    ) -> None:
        self._shared_calls = shared_calls
        self._key = key
        self._shared_call = shared_call

    def __enter__(self) -> None:
        self._token = _CURRENT_CALLS.set((*_CURRENT_CALLS.get(), self._shared_call))

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):  # a dropped coroutine is closed in another context
            _CURRENT_CALLS.reset(self._token)
        # Remove before waking: a waiter that starts over must not find this call again.
        del self._shared_calls[self._key]
        with suppress(RuntimeError):  # its loop has ended, and so have its waiters
            self._shared_call.done.set()


def copy_exception(error: Exception, trace: TracebackType | None) -> Exception:
    """Copy a shared exception so that each waiter gets its own traceback, cause and notes.

    If a class cannot be copied, or the copy has other arguments, all waiters share the exception.

    Args:
        error: of the shared call.
        trace: its traceback; each waiter starts with it.
    """
    try:
        own_call = copy.copy(error)
        # copy.copy rebuilds an exception from its args, which loses data if __init__ takes others.
        if type(own_call) is not type(error) or own_call.args != error.args:
            return error.with_traceback(trace)
        own_call.__cause__, own_call.__context__ = error.__cause__, error.__context__
        own_call.__suppress_context__ = error.__suppress_context__
        if hasattr(error, "__notes__"):
            own_call.__notes__ = [*error.__notes__]
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return error.with_traceback(trace)
    return own_call.with_traceback(trace)


async def _wait_until(event: _AsyncEvent, end_s: float | None) -> bool:
    """Wait for the end of a call, until ``end_s`` at most; return whether it has ended."""
    import anyio

    if end_s is None:
        await event.wait()
        return True
    with anyio.CancelScope(deadline=end_s) as limit:
        await event.wait()
    return not limit.cancelled_caught


def _loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        return current_trio_token()
