"""The storage of one event loop: its client is bound to the loop, made at first use and closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Final

from autoglm_throttle.store.limits_storage import client_of, close
from autoglm_throttle.store.stall import GRACE_S, STALL_S
from autoglm_throttle.store.user_limit_store import Answer, StoreErrorKind, StoreStats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from autoglm_throttle.store.limits_storage import Counting

    Work = asyncio.Task[Answer | StoreErrorKind]

CLOSE_S: Final = 1.0
"""Longest close; a server that hangs would delay the end of the loop."""


class LoopStorage:
    """The storage of a `LimitsWindow` in one loop. Used in that loop only.

    Args:
        loop: the loop.
        make: opens a storage, without connecting yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Counting]) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.sent: int = 0
        """Decisions."""
        self._make = make
        self.closings: dict[asyncio.Task[None], Counting] = {}
        """Storages that are being closed."""
        self._counting: Counting | None = None
        self._closer: AsyncGenerator[None] | None = None
        self._works: set[Work] = set()
        self._calls = 0
        self._late = 0
        self._failed_s = -math.inf

    def counting(self) -> Counting:
        """The storage in use, opened if there is none."""
        if self._counting is None:
            self.use(self._make())
        assert self._counting is not None  # noqa: S101 - for the type checker
        return self._counting

    def connect_new(self) -> Counting:
        """Return a storage with a new connection; the current one if it needs no connection."""
        current = self.counting()
        return self._make() if _connects(current) else current

    def use(self, fresh: Counting) -> None:
        """Use this storage from now on."""
        old, self._counting = self._counting, fresh
        if old is not None and old is not fresh:
            self.close(old)
        if self._closer is None:
            self._closer = self._closing()
            with contextlib.suppress(StopIteration):  # run to its yield: the loop registers it
                self._closer.__anext__().send(None)

    def disconnect(self) -> None:
        """Close the connections; a storage without any, such as one in memory, stays."""
        if self._counting is not None and _connects(self._counting):
            self.close(self._counting)
            self._counting = None

    def close(self, counting: Counting) -> None:
        """Close a storage, unless it has no connection."""
        if not _connects(counting):
            return
        self._calls += counting.calls
        closing = self.loop.create_task(_close(counting))
        self.closings[closing] = counting
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled():  # else the loop ends: it cancels tasks, then closes generators
            del self.closings[closing]

    def begin(self, work: Coroutine[None, None, Answer | StoreErrorKind]) -> Work:
        """Start a decision."""
        task = self.loop.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    async def in_time(self, work: Work, due_s: float) -> bool:
        """Wait for a decision; False after its deadline, unless the loop itself had stalled."""
        await asyncio.wait((work,), timeout=due_s - self.loop.time())
        if not work.done() and self.loop.time() > due_s + STALL_S:
            await asyncio.wait((work,), timeout=GRACE_S)
        return work.done()

    def detach(self, work: Work, due_s: float) -> None:
        """Let a decision without a waiter end by itself, until its deadline."""
        self.loop.call_at(due_s, work.cancel)

        def ended(task: Work) -> None:
            if not task.cancelled():
                self._late += 1

        work.add_done_callback(ended)

    def is_new_result(self, answer: Answer | StoreErrorKind, started_s: float) -> bool:
        """Whether the result is new information about the storage; errors that failed together count once."""
        if not isinstance(answer, StoreErrorKind):
            return True
        if started_s < self._failed_s:
            return False
        self._failed_s = self.loop.time()
        return True

    def stats(self) -> StoreStats:
        """Return the counters of this loop."""
        now = self._counting.calls if self._counting is not None else 0
        return StoreStats(self._calls + now, self.sent, self._late, len(self._works))

    async def _closing(self) -> AsyncGenerator[None]:
        """Close open storages when the loop ends its generators."""
        try:
            yield
        finally:
            unclosed = [*self.closings.values()]
            if self._counting is not None and _connects(self._counting):
                unclosed.append(self._counting)
            for counting in unclosed:
                await _close(counting)


def _connects(counting: Counting) -> bool:
    return client_of(counting.storage) is not None


async def _close(counting: Counting) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await close(counting.storage)
