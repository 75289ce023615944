"""One process of a fleet that shares its breakers: ``python -m benchmarks.breakers.worker URL OPEN_S``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.types import BreakerState, GuardRejected
from benchmarks.breakers.contestants import FAILURES_AT_MOST, Broken

LOOK_S = 0.001
"""Between two calls of one who waits for an opening and has nothing else to do."""
GIVE_UP_S = 10.0


def throttle(url: str, open_s: float) -> Throttle:
    """What each process of the fleet has."""
    return Throttle(Settings(gpu="none", breaker_open_s=open_s, breaker_shared=True, redis_url=url))


async def succeed() -> None:
    """The dependency, well."""


async def trip(guards: Throttle, name: str) -> float:
    """Fail until calls are refused; the moment of the last failure, in seconds of the system's one clock."""
    failed_s = 0.0

    @guards.guard(name)
    async def failing() -> None:
        nonlocal failed_s
        failed_s = time.monotonic()
        raise Broken

    for _ in range(FAILURES_AT_MOST):
        try:
            await failing()
        except GuardRejected:
            return failed_s
        except Broken:
            pass
    raise RuntimeError(f"{name} does not open")


async def until(true: Callable[[], bool], what: str) -> None:
    """Look every millisecond."""
    ends_s = time.monotonic() + GIVE_UP_S
    while not true():
        if time.monotonic() > ends_s:
            raise RuntimeError(f"not in time: {what}")
        await asyncio.sleep(LOOK_S)


class Worker:
    """Does what it is told; each word is a method."""

    def __init__(self, guards: Throttle) -> None:
        self.guards = guards
        self._release = asyncio.Event()
        self._crowd: asyncio.Future[Any] | None = None

    async def call(self, name: str) -> dict[str, Any]:
        """Call once, and say how long that took and whether it was refused: a cold process knows already."""
        guarded = self.guards.guard(name)(succeed)
        begun_s = time.monotonic()
        try:
            await guarded()
        except GuardRejected:
            return {"refused": True, "ms": (time.monotonic() - begun_s) * 1e3}
        return {"refused": False, "ms": (time.monotonic() - begun_s) * 1e3}

    async def watch(self, name: str, *, busy: bool) -> float:
        """Call until refused, without a pause or each millisecond; the moment of the refusal."""
        guarded = self.guards.guard(name)(succeed)
        ends_s = time.monotonic() + GIVE_UP_S
        while time.monotonic() < ends_s:
            try:
                await guarded()
            except GuardRejected:
                return time.monotonic()
            if not busy:
                await asyncio.sleep(LOOK_S)
        raise RuntimeError(f"{name} was not seen to open")

    async def trip(self, name: str) -> float:
        """Open it."""
        return await trip(self.guards, name)

    async def opened(self, name: str) -> None:
        """Wait until it is known here that it was opened."""
        guard = self.guards.guard(name)
        await until(lambda: guard.state() is not BreakerState.CLOSED, f"{name} is open")

    async def crowd(self, name: str, *, at_s: float, size: int) -> int:
        """Ask that often at once; how many got through, once all have got through or been refused."""
        self._release.clear()
        entered, refused = 0, 0
        asked = asyncio.Event()

        def count() -> None:
            if entered + refused == size:
                asked.set()

        @self.guards.guard(name)
        async def trial() -> None:
            nonlocal entered
            entered += 1
            count()
            await self._release.wait()

        async def one() -> None:
            nonlocal refused
            try:
                await trial()
            except GuardRejected:
                refused += 1
                count()

        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        self._crowd = asyncio.gather(*(one() for _ in range(size)))
        await asked.wait()
        return entered

    async def release(self, name: str) -> None:
        """Let the trials end; it is closed then."""
        self._release.set()
        if self._crowd is not None:
            await self._crowd
        guard = self.guards.guard(name)
        await until(lambda: guard.state() is BreakerState.CLOSED, f"{name} is closed")


async def work(url: str, open_s: float) -> None:
    """Answer each line with one."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    worker = Worker(throttle(url, open_s))
    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        word: Callable[..., Coroutine[Any, Any, Any]] = getattr(worker, told.pop("what"))
        print(json.dumps(await word(**told)), flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
