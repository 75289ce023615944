"""Work in the background of loops that live long, and of those that do not."""

from __future__ import annotations

import asyncio
import threading

from autoglm_throttle.store.shared_limits import THREAD, begin

SOON_S = 60.0


class Work:
    """Says where it was done; it takes as many passes of the loop as a test wants."""

    def __init__(self, passes: int = 0) -> None:
        self.passes = passes
        self.begun = 0
        self.over = threading.Event()
        self.heard: list[str] = []

    async def __call__(self) -> str:
        self.begun += 1
        for _ in range(self.passes):
            await asyncio.sleep(0)
        self.passes = 0
        return threading.current_thread().name

    def done(self, where: str) -> None:
        self.heard.append(where)
        self.over.set()


def test_without_a_loop_nothing_begins() -> None:
    work = Work()
    assert not begin(work, work.done, retry_in_thread=True)
    assert work.begun == 0


async def test_it_is_done_once_in_the_loop_that_runs() -> None:
    work = Work(3)
    assert begin(work, work.done, retry_in_thread=True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (work.begun, work.heard) == (1, [threading.current_thread().name])


def test_a_loop_that_ends_before_takes_it_with_it() -> None:
    for passes in (0, 1):
        work = Work(10)
        asyncio.run(_short(work, passes, insists=False))
        assert not work.over.is_set()
        assert THREAD not in {thread.name for thread in threading.enumerate()}


def test_required_work_is_redone_in_a_thread() -> None:
    for passes in (0, 1):
        work = Work(10)
        asyncio.run(_short(work, passes, insists=True))
        assert work.over.wait(SOON_S)
        assert work.heard == [THREAD]


async def _short(work: Work, passes: int, *, insists: bool) -> None:
    begin(work, work.done, retry_in_thread=insists)
    for _ in range(passes):
        await asyncio.sleep(0)
