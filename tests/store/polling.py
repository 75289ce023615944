"""Polling of a real server, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tests.store.resp import ReplyError

T = TypeVar("T")

HANG_S: Final = 60.0
"""Seconds until a wait counts as a hang. No answer takes as long, however busy the machine is."""


def until(true: Callable[[], object], within_s: float, what: str) -> None:
    """Ask every 10 ms; a server that does not answer (yet) counts as no.

    Raises:
        AssertionError: it did not come true in time.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except (OSError, ReplyError):
            pass
        time.sleep(0.01)
    raise AssertionError(f"not within {within_s} s: {what}")


async def eventually(true: Callable[[], object], what: object, within_s: float = HANG_S) -> None:
    """Run the loop until a condition holds.

    Raises:
        AssertionError: it did not come true in time.
    """
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.001)


async def suspended(work: Awaitable[T]) -> tuple[T, bool]:
    """Return a result, and whether the loop ran before it was there: without a wait it does not run."""
    ran: list[bool] = []
    mark = asyncio.get_running_loop().call_soon(ran.append, True)
    result = await work
    mark.cancel()
    return result, bool(ran)


class Jumps:
    """A blocked event loop without the wait: its clock jumps ahead while none of its tasks runs.

    Args:
        loop: the loop; its clock goes on from where it jumped to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ahead_s = 0.0
        plain = loop.time
        loop.time = lambda: plain() + self._ahead_s  # type: ignore[method-assign]

    def __call__(self, seconds: float) -> None:
        """Let that much time pass at once."""
        self._ahead_s += seconds
