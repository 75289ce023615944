"""Single flight: concurrent calls with one key share one live call and wait for its result."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from contextvars import ContextVar
from math import isinf
from operator import le
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from autoglm_throttle.resilience.drive import Call, Steps
from autoglm_throttle.resilience.fallback import UNSET, Unset

if TYPE_CHECKING:
    import anyio

T = TypeVar("T")

# Time limits of a caller in seconds, infinite without one; the first is also that of its wait for others.
Limits = tuple[float, ...]

# A waiter with a limit in vain waits once more, among those in the same situation: they call one at a time.
_TURNS: Final = 2

# Patience with a leader that has no longer limits: its own limit ends its call, perhaps a moment later.
_PATIENCE: Final = 2.0


class _SharedCall(Generic[T]):
    """One live call; it ends without a result if it was cancelled.

    As a context manager it is the call of its leader; at its end all waiters wake, even after an error.
    """

    __slots__ = ("_calls", "_token", "done", "key", "limits", "result", "waiters")

    def __init__(
        self, calls: dict[Hashable, _SharedCall[T]], limits: Limits, done: threading.Event | anyio.Event
    ) -> None:
        self._calls = calls
        self.key: Hashable = None
        self.limits = limits  # Those of its leader
        self.done = done
        self.result: T | Unset = UNSET
        self.waiters: int = 0

    def __enter__(self) -> None:
        self._token = _CURRENT_CALLS.set((*_CURRENT_CALLS.get(), self))

    def __exit__(self, *error: object) -> None:
        with suppress(ValueError):  # a dropped coroutine is closed in another context
            _CURRENT_CALLS.reset(self._token)
        # Remove before waking: a waiter that starts over must not find this call again.
        del self._calls[self.key]
        with suppress(RuntimeError):  # its loop has ended, and so have its waiters
            self.done.set()


# Shared calls that contain the current call: a recursive function must not wait for its own end.
_CURRENT_CALLS: ContextVar[tuple[object, ...]] = ContextVar("autoglm_throttle_current_calls", default=())


class SingleFlight(Generic[T]):
    """The live calls in flight.

    Threads share calls within the process, tasks within their event loop, since no other loop can wake them.
    The first caller of a key makes the call. All waiters get its result. If it was cancelled or its result is
    not for them, as a time-out of a caller with a shorter limit, they start over, and the first of them makes
    the next call. Waiters whose own limit ends share a second call in the same way, so no caller depends on
    another's time limit, and a dependency that hangs gets at most two calls at a time.
    """

    def __init__(self, is_shareable: Callable[[T, Limits], bool]) -> None:
        self._is_shareable = is_shareable
        self._calls: dict[Hashable, _SharedCall[T]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """Number of callers that wait for another one's call."""
        return sum(call.waiters for call in tuple(self._calls.values()))

    def in_flight(self, key: Hashable) -> Steps[bool]:
        """Return whether another thread, or another task of this loop, is making the call."""
        loop, _ = yield _SCOPE
        return (loop, key, 0) in self._calls

    def run(
        self, key: Hashable, call: Callable[[], Steps[T]], limits: Limits
    ) -> Steps[tuple[T, bool] | None]:
        """Make the call or wait for it; return the result, and whether it is that of the own call.

        None: another caller's call, and then that of a waiter, lasted longer than the limit.
        """
        loop, event = yield _SCOPE
        own = _SharedCall(self._calls, limits, event)
        for turn in range(_TURNS):
            own.key, end_s = (loop, key, turn), None
            # `setdefault` is atomic: of several callers exactly one becomes the leader.
            while (shared := self._calls.setdefault(own.key, own)) is not own:
                if shared in _CURRENT_CALLS.get():
                    return (yield from call()), True
                end_s = _end_s(limits, shared.limits) if end_s is None else end_s
                is_done = yield from _wait(shared, end_s)
                result = shared.result
                if not isinstance(result, Unset) and self._is_shareable(result, limits):
                    return result, False
                if not is_done:
                    break
            else:
                with own:
                    own.result = yield from call()
                return own.result, True
        return None


def _end_s(limits: Limits, leader: Limits) -> float:
    patience = _PATIENCE if all(map(le, leader, limits)) else 1.0
    return monotonic() + patience * limits[0]


def _wait(shared: _SharedCall[T], end_s: float) -> Steps[bool]:
    """Wait for the end of a call, until ``end_s`` at most; return whether it has ended."""
    left_s = None if isinf(end_s) else max(0.0, end_s - monotonic())
    shared.waiters += 1
    try:
        is_done: bool = yield Call(_wait_in_thread, _wait_in_task, (shared.done, left_s))
        return is_done
    finally:
        shared.waiters -= 1


def _wait_in_thread(event: threading.Event, limit_s: float | None) -> bool:
    return event.wait(limit_s)


async def _wait_in_task(event: anyio.Event, limit_s: float | None) -> bool:
    import anyio

    if limit_s is None:
        await event.wait()
        return True
    with anyio.move_on_after(limit_s) as limit:
        await event.wait()
    return not limit.cancelled_caught


def _thread_scope() -> tuple[object, threading.Event]:
    return None, threading.Event()


async def _task_scope() -> tuple[object, anyio.Event]:
    import anyio

    try:
        return asyncio.get_running_loop(), anyio.Event()
    except RuntimeError:
        from trio.lowlevel import current_trio_token

        return current_trio_token(), anyio.Event()


# Step: the callers that may share a call, None for all threads, and an event that can wake them.
_SCOPE: Final = Call(_thread_scope, _task_scope)


def copy_exception(error: Exception, trace: TracebackType | None) -> Exception:
    """Copy a shared exception so that each waiter gets its own traceback, cause and notes.

    If a class cannot be copied, or the copy has other arguments, all waiters share the exception.
    """
    try:
        own = copy.copy(error)
        # copy.copy rebuilds an exception from its args, which loses data if __init__ takes others.
        if type(own) is not type(error) or own.args != error.args:
            return error.with_traceback(trace)
        own.__cause__, own.__context__ = error.__cause__, error.__context__
        own.__suppress_context__ = error.__suppress_context__
        if hasattr(error, "__notes__"):
            own.__notes__ = [*error.__notes__]
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return error.with_traceback(trace)
    return own.with_traceback(trace)
