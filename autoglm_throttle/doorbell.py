"""How a waiting request is woken in its own event loop, from whichever thread its turn is found out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio

Leaves = Callable[[], Awaitable[None]]
"""Comes to its end when the one who waits has gone away."""


class Doorbell(Protocol):
    """One waiter's bell. It is rung once; ringing it later, or after its loop has ended, does nothing."""

    def ring(self) -> None:
        """Wake the waiter. Never blocks; may be called from any thread."""
        ...

    async def wait(self, seconds: float, leaves: Leaves) -> bool:
        """Wait for the bell, for ``seconds`` at most; True if ``leaves`` came to its end before.

        ``leaves`` is cancelled when the bell rings.
        """
        ...


def doorbell() -> Doorbell:
    """A bell for the task that asks."""
    loop = _running()
    return _ScopeBell() if loop is None else _TimeoutBell(loop)


class _TimeoutBell:
    """Under asyncio: the standard library's timeout, moved to now, is half as dear as a cancel scope."""

    __slots__ = ("_loop", "_rung", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timeout: asyncio.Timeout | None = None
        self._rung = False

    def ring(self) -> None:
        if _running() is self._loop:
            self._end()
        else:  # another thread, or this one while the loop stands still
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._rung = True
        if self._timeout is not None:
            with suppress(RuntimeError):  # the wait has just ended by itself
                self._timeout.reschedule(0.0)

    async def wait(self, seconds: float, leaves: Leaves) -> bool:
        if self._rung:
            return False
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                await leaves()
        except TimeoutError:
            if self._timeout is not None and self._timeout.expired():
                return False
            raise
        finally:
            self._timeout = None
        return True


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
