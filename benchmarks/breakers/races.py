"""How many get through a breaker that has just become half-open, while the first of them is still busy."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.breakers.contestants import CONTESTANTS, Broken, Contestant, Ours
from benchmarks.breakers.process import Process
from benchmarks.breakers.scale import Scale
from tests.store.server import RedisServer

TASKS = 1000
THREADS = 64
PROCESSES = 2
EACH = 50
"""Tasks of each process."""

OPEN_S = 0.03
SHARED_OPEN_S = 0.1
"""Longer, so that the other process hears of it in time."""
LATER_S = 0.005
HOLD_S = 10.0
"""So long a trial lasts at most: until everybody has asked."""
SERIAL_HOLD_S = 0.01
"""Where threads go one by one, the others cannot ask before it ends."""


class Turnstile:
    """Counts who gets through and who is refused, and tells when everybody has asked.

    Args:
        size: how many ask.
        asked: is set when all have.
    """

    def __init__(self, size: int, asked: threading.Event | asyncio.Event) -> None:
        self.entered = 0
        self._refused = 0
        self._size = size
        self._asked = asked
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Be let through."""
        with self._lock:
            self.entered += 1
            self._look()

    def refuse(self) -> None:
        """Be refused."""
        with self._lock:
            self._refused += 1
            self._look()

    def _look(self) -> None:
        if self.entered + self._refused == self._size:
            self._asked.set()


async def _tasks_once(one: Contestant) -> int:
    asked = asyncio.Event()
    stile = Turnstile(TASKS, asked)

    async def dependency() -> int:
        if ill:
            raise Broken
        stile.enter()
        await asked.wait()
        return 1

    guarded = one.coroutine(dependency)

    async def caller() -> None:
        try:
            await guarded()
        except one.refusal:
            stile.refuse()

    ill = True
    await one.trip(guarded)
    ill = False
    await asyncio.sleep(one.open_s + LATER_S)
    await asyncio.gather(*(caller() for _ in range(TASKS)))
    return stile.entered


def _threads_once(one: Contestant, pool: ThreadPoolExecutor) -> int:
    asked = threading.Event()
    stile = Turnstile(THREADS, asked)
    hold_s = SERIAL_HOLD_S if one.one_by_one else HOLD_S
    start = threading.Barrier(THREADS)

    def dependency() -> int:
        if ill:
            raise Broken
        stile.enter()
        asked.wait(hold_s)
        return 1

    guarded = one.function(dependency)

    def caller() -> None:
        start.wait()
        try:
            guarded()
        except one.refusal:
            stile.refuse()

    ill = True
    one.trip_now(guarded)
    ill = False
    time.sleep(one.open_s + LATER_S)
    for done in [pool.submit(caller) for _ in range(THREADS)]:
        done.result()
    return stile.entered


def _told(admitted: list[int]) -> dict[str, int]:
    return {"least": min(admitted), "most": max(admitted), "of": len(admitted)}


def tasks(kind: type[Contestant], times: int) -> dict[str, int]:
    """Fewest and most tasks that got through."""

    async def run() -> list[int]:
        return [await _tasks_once(kind(OPEN_S)) for _ in range(times)]

    return _told(asyncio.run(run()))


def threads(kind: type[Contestant], times: int) -> dict[str, int]:
    """The same of threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return _told([_threads_once(kind(OPEN_S), pool) for _ in range(times)])


def processes(server: RedisServer, times: int) -> dict[str, int]:
    """The same of tasks in processes that share their breakers, ours alone."""
    with Process(server.url, SHARED_OPEN_S) as here, Process(server.url, SHARED_OPEN_S) as there:
        return _told([_processes_once(f"trial-{number}", here, there) for number in range(times)])


def _processes_once(name: str, here: Process, there: Process) -> int:
    both = (here, there)
    for process in both:
        process.ask("call", name)
    here.ask("trip", name)
    there.ask("opened", name)
    at_s = time.monotonic() + SHARED_OPEN_S + LATER_S
    for process in both:
        process.say("crowd", name, at_s=at_s, size=EACH)
    admitted = sum(process.hear() for process in both)
    for process in both:
        process.say("release", name)
    for process in both:
        process.hear()
    return int(admitted)


def half_open(server: RedisServer, scale: Scale) -> dict[str, Any]:
    """Who -> tasks and threads that got through in some rounds; ours also processes."""
    times = {kind: scale.races if kind is Ours else scale.rival_races for kind in CONTESTANTS}
    found: dict[str, Any] = {
        kind.name: {"tasks": tasks(kind, often), "threads": threads(kind, often)}
        for kind, often in times.items()
    }
    found[Ours.name]["processes"] = processes(server, scale.races)
    return found
