"""Work in the background of whichever event loop runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

THREAD: Final = "autoglm-throttle-store"
"""Name of a thread that does what a loop has not lived to see done."""

_running: set[asyncio.Task[None]] = set()
"""A loop itself holds its tasks only weakly."""


def loop_runs() -> bool:
    """Whether an asyncio loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def later(seconds: float, call: Callable[[], None]) -> bool:
    """Call something in the running loop after a while; False where none runs. The loop may end before."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    loop.call_later(seconds, call)
    return True


def begin(work: Callable[[], Awaitable[T]], done: Callable[[T], None], *, insists: bool = False) -> bool:
    """Begin work whose outcome is handed to ``done``, in the loop; False where no asyncio loop runs here.

    A loop that ends before takes the work with it, and ``done`` is never called.

    Args:
        work: what to do.
        done: called with its outcome, in the loop that did it.
        insists: have the work done over again in a thread if the loop ends before. Where each request has a
            loop of its own, none lives as long as anything in the background takes.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False

    async def run() -> None:
        done(await work())

    def ended(task: asyncio.Task[None]) -> None:
        _running.discard(task)
        if insists and task.cancelled():
            with contextlib.suppress(RuntimeError):  # the interpreter ends, too
                threading.Thread(target=lambda: asyncio.run(run()), name=THREAD, daemon=True).start()

    task = loop.create_task(run())
    _running.add(task)
    task.add_done_callback(ended)
    return True
