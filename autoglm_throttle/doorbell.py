"""How a waiting request is woken in its own event loop, from whichever thread its turn is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

DEAF_S = 0.05
"""Seconds for which nobody listens whether the client has gone: most waits are shorter, listening costs as
much CPU as all else that a wait does, and a place that nobody wants any more is no harm for so long."""

Leaves = Callable[[], Awaitable[None]]
"""Comes to its end when the one who waits has gone away."""


class Doorbell(Protocol):
    """One waiter's bell. It is rung once; ringing it later, or after its loop has ended, does nothing."""

    def ring(self) -> None:
        """Wake the waiter. Never blocks; may be called from any thread."""
        ...

    async def wait(self, seconds: float, leaves: Leaves) -> bool:
        """Wait for the bell, for ``seconds`` at most; True if ``leaves`` came to its end before.

        ``leaves`` may be begun some time after, up to `DEAF_S`, and is cancelled when the bell rings.
        """
        ...


def doorbell() -> Doorbell:
    """A bell for the task that asks."""
    loop = _running()
    return _ScopeBell() if loop is None else _FutureBell(loop)


class _FutureBell:
    """Under asyncio: at first a plain future, as most waits are short; then the standard library's timeout.

    A timeout that is moved to now cancels what listens for the client, at half the price of a cancel scope.
    """

    __slots__ = ("_first", "_loop", "_rung", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = False
        self._first: asyncio.Future[None] | None = None
        self._timeout: asyncio.Timeout | None = None

    def ring(self) -> None:
        if _running() is self._loop:
            self._end()
        else:  # another thread, or this one while the loop stands still
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._rung = True
        if self._first is not None:
            _finish(self._first)
        if self._timeout is not None:
            with suppress(RuntimeError):  # the wait has just ended by itself
                self._timeout.reschedule(0.0)

    async def wait(self, seconds: float, leaves: Leaves) -> bool:
        if not self._rung:
            await self._deaf(min(seconds, DEAF_S))
        if self._rung or seconds <= DEAF_S:
            return False
        try:
            async with asyncio.timeout(seconds - DEAF_S) as self._timeout:
                await leaves()
        except TimeoutError:
            if self._timeout is not None and self._timeout.expired():
                return False
            raise
        finally:
            self._timeout = None
        return True

    async def _deaf(self, seconds: float) -> None:
        self._first = self._loop.create_future()
        timer = self._loop.call_later(seconds, _finish, self._first)
        try:
            await self._first
        finally:
            timer.cancel()
            self._first = None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _ScopeBell:
    """Under trio: a cancel scope.

    It is always cancelled from the loop's own queue: whoever rings may be the garbage collector,
    in the midst of the loop's work.
    """

    __slots__ = ("_rung", "_scope", "_soon")

    def __init__(self) -> None:
        from trio.lowlevel import current_trio_token

        self._soon = current_trio_token().run_sync_soon
        self._scope: anyio.CancelScope | None = None
        self._rung = False

    def ring(self) -> None:
        with suppress(Exception):  # the loop has ended
            self._soon(self._end)

    def _end(self) -> None:
        self._rung = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, seconds: float, leaves: Leaves) -> bool:
        if self._rung:
            return False
        with anyio.move_on_after(seconds) as self._scope:
            await leaves()
        left = not self._scope.cancelled_caught
        self._scope = None
        return left
