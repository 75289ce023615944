"""Number of calls admitted by a breaker that has just become half-open, while the first is running."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.breakers.candidates import CANDIDATES, Broken, Candidate, Ours
from benchmarks.breakers.process import Process
from benchmarks.breakers.scale import Scale
from tests.store.server import RedisServer

TASKS = 1000
THREADS = 64
PROCESSES = 2
EACH = 50
"""Number of tasks of each process."""

OPEN_S = 0.03
SHARED_OPEN_S = 0.1
"""A longer open time, so that the other process is notified in time."""
LATER_S = 0.005
HOLD_S = 10.0
"""Longest duration of a probe call; it ends when all callers have arrived."""
SERIAL_HOLD_S = 0.01
"""Duration of a probe call where threads pass one after another."""


class ProbeCounter:
    """Counts admitted and rejected callers, and sets an event when all have arrived.

    Args:
        size: number of callers.
        all_arrived: set when all callers have arrived.
    """

    def __init__(self, size: int, all_arrived: threading.Event | asyncio.Event) -> None:
        self.entered = 0
        self._rejected = 0
        self._size = size
        self._all_arrived = all_arrived
        self._lock = threading.Lock()

    def count_admitted(self) -> None:
        """Count an admitted caller."""
        with self._lock:
            self.entered += 1
            self._check_complete()

    def count_rejected(self) -> None:
        """Count a rejected caller."""
        with self._lock:
            self._rejected += 1
            self._check_complete()

    def _check_complete(self) -> None:
        if self.entered + self._rejected == self._size:
            self._all_arrived.set()


async def _tasks_once(one: Candidate) -> int:
    all_arrived = asyncio.Event()
    counter = ProbeCounter(TASKS, all_arrived)

    async def dependency() -> int:
        if failing:
            raise Broken
        counter.count_admitted()
        await all_arrived.wait()
        return 1

    guarded = one.coroutine(dependency)

    async def caller() -> None:
        try:
            await guarded()
        except one.rejection:
            counter.count_rejected()

    failing = True
    await one.trip(guarded)
    failing = False
    await asyncio.sleep(one.open_s + LATER_S)
    await asyncio.gather(*(caller() for _ in range(TASKS)))
    return counter.entered


def _threads_once(one: Candidate, pool: ThreadPoolExecutor) -> int:
    all_arrived = threading.Event()
    counter = ProbeCounter(THREADS, all_arrived)
    hold_s = SERIAL_HOLD_S if one.one_by_one else HOLD_S
    start = threading.Barrier(THREADS)

    def dependency() -> int:
        if failing:
            raise Broken
        counter.count_admitted()
        all_arrived.wait(hold_s)
        return 1

    guarded = one.function(dependency)

    def caller() -> None:
        start.wait()
        try:
            guarded()
        except one.rejection:
            counter.count_rejected()

    failing = True
    one.trip_sync(guarded)
    failing = False
    time.sleep(one.open_s + LATER_S)
    for done in [pool.submit(caller) for _ in range(THREADS)]:
        done.result()
    return counter.entered


def _summary(admitted: list[int]) -> dict[str, int]:
    return {"least": min(admitted), "most": max(admitted), "of": len(admitted)}


def tasks(kind: type[Candidate], times: int) -> dict[str, int]:
    """Return the fewest and most admitted tasks."""

    async def run() -> list[int]:
        return [await _tasks_once(kind(OPEN_S)) for _ in range(times)]

    return _summary(asyncio.run(run()))


def threads(kind: type[Candidate], times: int) -> dict[str, int]:
    """Return the fewest and most admitted threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return _summary([_threads_once(kind(OPEN_S), pool) for _ in range(times)])


def processes(server: RedisServer, times: int) -> dict[str, int]:
    """Return the fewest and most admitted tasks of processes with shared breakers, ours alone."""
    with Process(server.url, SHARED_OPEN_S) as first, Process(server.url, SHARED_OPEN_S) as second:
        return _summary([_processes_once(f"trial-{number}", first, second) for number in range(times)])


def _processes_once(name: str, first: Process, second: Process) -> int:
    both = (first, second)
    for process in both:
        process.request("call", name)
    first.request("trip", name)
    second.request("opened", name)
    at_s = time.monotonic() + SHARED_OPEN_S + LATER_S
    for process in both:
        process.send("probe_burst", name, at_s=at_s, size=EACH)
    admitted = sum(process.receive() for process in both)
    for process in both:
        process.send("release", name)
    for process in both:
        process.receive()
    return int(admitted)


def half_open(server: RedisServer, scale: Scale) -> dict[str, Any]:
    """Measure admitted tasks and threads of each candidate; for ours also processes."""
    times = {kind: scale.races if kind is Ours else scale.peer_races for kind in CANDIDATES}
    found: dict[str, Any] = {
        kind.name: {"tasks": tasks(kind, rounds), "threads": threads(kind, rounds)}
        for kind, rounds in times.items()
    }
    found[Ours.name]["processes"] = processes(server, scale.races)
    return found
