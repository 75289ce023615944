"""Wakes a waiting request in its own event loop, from any thread."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import _get_running_loop as running_loop  # a call of C
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

import anyio

# Seconds that a wait may last too long: those that end within them share a timer. With one for each, timers
# of 10,000 waits took as much time and memory as the waits.
TICK_S: Final = 0.002

DisconnectWait = Callable[[], Awaitable[None]]  # Awaitable that ends when the client has disconnected


class AsyncioWakeup:
    """Wake-up under asyncio: completes a future, or cancels a block of its task as `asyncio.timeout` does."""

    __slots__ = ("_cancelling", "_is_ended", "_sleep", "_task", "_timers", "_waits", "is_set")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        timers = _TIMERS.get(id(loop))
        if timers is None:
            timers = _TIMERS[id(loop)] = _Timers(loop)
        self._timers = timers
        self._sleep: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None  # While it is in the block of `until`
        self._is_ended = False  # Whether the block has been cancelled
        self.is_set: bool = False

    def __call__(self) -> None:
        """Wake the waiter. Never blocks; may be called from any thread."""
        loop = self._timers.loop
        if running_loop() is loop:
            self._set()
        else:  # another thread, or this one outside the loop
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self.is_set = True
        if self._task is None:
            self.end()
        else:  # soon: this may be called amid the work of the task itself
            self._timers.loop.call_soon(self.end)

    def end(self) -> None:
        """End the wait that is under way, if there is one; called between two steps of its task."""
        if self._task is not None:
            if not self._is_ended:
                self._is_ended = True
                self._task.cancel()
        elif self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait to be woken, for ``seconds`` at most."""
        self._sleep = sleep = self._timers.loop.create_future()
        if self.is_set or seconds <= 0.0:
            sleep.set_result(None)
        else:
            self._timers.add(self, seconds)
        return sleep

    def until(self, seconds: float) -> AbstractContextManager[object, bool]:
        """Return a context whose block is cancelled, and left, on being woken or after ``seconds``."""
        self._waits = self._timers.add(self, seconds)
        return self

    def __enter__(self) -> None:
        self._sleep, self._is_ended = None, False
        self._task = task = asyncio.current_task(self._timers.loop)
        self._cancelling = 0 if task is None else task.cancelling()
        if self.is_set:  # since the caller looked: a finalizer may wake, too
            self._timers.loop.call_soon(self.end)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._waits.pop(self, None)
        task, self._task = self._task, None
        # A cancellation from outside at the same time stays one.
        is_own = self._is_ended and task is not None and task.uncancel() <= self._cancelling
        return is_own and kind is asyncio.CancelledError


class _Timers:
    """Timers of one event loop, each of them for all waits that end within a tick."""

    __slots__ = ("__weakref__", "_waits", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._waits: dict[int, dict[AsyncioWakeup, None]] = {}  # By the number of the tick

    def add(self, wakeup: AsyncioWakeup, seconds: float) -> dict[AsyncioWakeup, None]:
        """End a wait in ``seconds`` or up to a tick later, unless it is removed from the returned ones."""
        tick = int((self.loop.time() + seconds) / TICK_S) + 1
        waits = self._waits.get(tick)
        if waits is None:
            waits = self._waits[tick] = {}
            self.loop.call_at(tick * TICK_S, self._end, tick)
        waits[wakeup] = None
        return waits

    def _end(self, tick: int) -> None:
        for wakeup in self._waits.pop(tick):
            wakeup.end()


# By the id of the loop, which lives as long as its timers.
_TIMERS: Final[weakref.WeakValueDictionary[int, _Timers]] = weakref.WeakValueDictionary()


class TrioWakeup:
    """Wake-up under trio: a cancel scope."""

    __slots__ = ("_scope", "_soon", "is_set")

    def __init__(self) -> None:
        from trio.lowlevel import current_trio_token

        self._soon = current_trio_token().run_sync_soon
        self._scope: anyio.CancelScope | None = None
        self.is_set: bool = False

    def __call__(self) -> None:
        """Wake the waiter."""
        # Always through the queue of the loop: this may be called amid the work of the loop itself.
        with suppress(Exception):  # the loop has ended
            self._soon(self._set)

    def _set(self) -> None:
        self.is_set = True
        if self._scope is not None:
            self._scope.cancel()

    async def sleep(self, seconds: float) -> None:
        """Wait to be woken, for ``seconds`` at most."""
        with self.until(seconds):
            await anyio.sleep_forever()

    def until(self, seconds: float) -> AbstractContextManager[object, bool]:
        """Return a context whose block is cancelled, and left, on being woken or after ``seconds``."""
        self._scope = scope = anyio.move_on_after(seconds)
        if self.is_set:
            scope.cancel()
        return scope


# The wake-up of one waiter; calling it again, or after its loop has ended, does nothing.
Wakeup = AsyncioWakeup | TrioWakeup


def new_wakeup() -> Wakeup:
    """Create the wake-up of the calling task."""
    loop = running_loop()
    return TrioWakeup() if loop is None else AsyncioWakeup(loop)
