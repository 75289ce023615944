"""Background work in the event loop that is running."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

THREAD: Final = "autoglm-throttle-store"
"""Name of a thread that repeats work which its event loop did not finish."""

_running: set[asyncio.Task[None]] = set()
"""Strong references to tasks: a loop holds its tasks only weakly."""


def loop_runs() -> bool:
    """Whether an asyncio loop runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_later(seconds: float, call: Callable[[], None]) -> bool:
    """Call a function in the running loop after ``seconds``; False without one. The loop may end first."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    loop.call_later(seconds, call)
    return True


def begin(
    work: Callable[[], Awaitable[T]], done: Callable[[T], None], *, retry_in_thread: bool = False
) -> bool:
    """Start work in the running asyncio loop and hand its result to ``done``; False without a loop.

    If the loop ends before, the work is cancelled and ``done`` is never called.

    Args:
        work: the work to do.
        done: called with its result, in the loop that did it.
        retry_in_thread: repeat the work in a thread if the loop ends before. Where each request has a
            loop of its own, no loop lives long enough for background work.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False

    async def run() -> None:
        done(await work())

    def ended(task: asyncio.Task[None]) -> None:
        _running.discard(task)
        if retry_in_thread and task.cancelled():
            with contextlib.suppress(RuntimeError):  # the interpreter ends, too
                threading.Thread(target=lambda: asyncio.run(run()), name=THREAD, daemon=True).start()

    task = loop.create_task(run())
    _running.add(task)
    task.add_done_callback(ended)
    return True
