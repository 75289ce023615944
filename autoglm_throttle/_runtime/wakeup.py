"""Wakes a waiting request in its own event loop, from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

# Seconds before disconnect detection starts: most waits are shorter, and detection doubles their cost.
DISCONNECT_WATCH_DELAY_S = 0.05

DisconnectWait = Callable[[], Awaitable[None]]  # Awaitable that ends when the client has disconnected


class AsyncioWakeup:
    """Wake-up under asyncio: a plain future, then a timeout, at half the price of a cancel scope."""

    __slots__ = ("_first", "_is_set", "_loop", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._first: asyncio.Future[None] | None = None
        self._timeout: asyncio.Timeout | None = None

    def set(self) -> None:
        """Wake the waiter. Never blocks; may be called from any thread."""
        if _running() is self._loop:
            self._end()
        else:  # another thread, or this one outside the loop
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_set = True
        if self._first is not None:
            _finish(self._first)
        if self._timeout is not None:
            with suppress(RuntimeError):  # the wait has just ended by itself
                self._timeout.reschedule(0.0)

    async def wait(self, seconds: float, disconnected: DisconnectWait) -> bool:
        """Wait for `set`, for ``seconds`` at most; True if ``disconnected`` ended first. It begins later."""
        if not self._is_set:
            self._first = self._loop.create_future()
            timer = self._loop.call_later(min(seconds, DISCONNECT_WATCH_DELAY_S), _finish, self._first)
            try:
                await self._first
            finally:
                timer.cancel()
                self._first = None
        if self._is_set or seconds <= DISCONNECT_WATCH_DELAY_S:
            return False
        try:
            async with asyncio.timeout(seconds - DISCONNECT_WATCH_DELAY_S) as self._timeout:
                await disconnected()
        except TimeoutError:
            if self._timeout is not None and self._timeout.expired():
                return False
            raise
        finally:
            self._timeout = None
        return True


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class TrioWakeup:
    """Wake-up under trio: a cancel scope."""

    __slots__ = ("_is_set", "_scope", "_soon")

    def __init__(self) -> None:
        from trio.lowlevel import current_trio_token

        self._soon = current_trio_token().run_sync_soon
        self._scope: anyio.CancelScope | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the waiter."""
        # Always through the queue of the loop: this may be called amid the work of the loop itself.
        with suppress(Exception):  # the loop has ended
            self._soon(self._end)

    def _end(self) -> None:
        self._is_set = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, seconds: float, disconnected: DisconnectWait) -> bool:
        """Wait for `set`, for ``seconds`` at most; True if ``disconnected`` ended first."""
        if self._is_set:
            return False
        with anyio.move_on_after(seconds) as self._scope:
            await disconnected()
        left = not self._scope.cancelled_caught
        self._scope = None
        return left


# The wake-up of one waiter; setting it again, or after its loop has ended, does nothing.
Wakeup = AsyncioWakeup | TrioWakeup


def new_wakeup() -> Wakeup:
    """Create the wake-up of the calling task."""
    loop = _running()
    return TrioWakeup() if loop is None else AsyncioWakeup(loop)
