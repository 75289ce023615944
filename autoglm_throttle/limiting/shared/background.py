"""Work in the background of whichever event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_running: set[asyncio.Task[None]] = set()
"""A loop itself holds its tasks only weakly."""


def loop_runs() -> bool:
    """Whether an asyncio loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def begin(work: Callable[[], Awaitable[T]], done: Callable[[T], None]) -> bool:
    """Begin work whose outcome is handed to ``done``, in the loop; False where no asyncio loop runs here.

    A loop that ends before takes the work with it, and ``done`` is never called.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False

    async def run() -> None:
        done(await work())

    task = loop.create_task(run())
    _running.add(task)
    task.add_done_callback(_running.discard)
    return True
