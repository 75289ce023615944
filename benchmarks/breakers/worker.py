"""One process of a fleet with shared breakers: ``python -m benchmarks.breakers.worker URL OPEN_S``."""

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
from benchmarks.breakers.candidates import FAILURES_AT_MOST, Broken

POLL_S = 0.001
"""Seconds between two calls of an idle process that waits for an opening."""
GIVE_UP_S = 10.0


def throttle(url: str, open_s: float) -> Throttle:
    """Build the throttle of a process of the fleet."""
    return Throttle(Settings(gpu="none", breaker_open_s=open_s, breaker_shared=True, redis_url=url))


async def succeed() -> None:
    """Succeed, as a healthy dependency."""


async def trip(guards: Throttle, name: str) -> float:
    """Fail until calls are rejected; returns the instant of the last failure (monotonic)."""
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


async def until(is_true: Callable[[], bool], condition: str) -> None:
    """Poll a condition every millisecond."""
    ends_s = time.monotonic() + GIVE_UP_S
    while not is_true():
        if time.monotonic() > ends_s:
            raise RuntimeError(f"not in time: {condition}")
        await asyncio.sleep(POLL_S)


class Worker:
    """Executes commands; each command is a method."""

    def __init__(self, guards: Throttle) -> None:
        self.guards = guards
        self._release = asyncio.Event()
        self._burst: asyncio.Future[Any] | None = None

    async def call(self, name: str) -> dict[str, Any]:
        """Call once; returns the duration and whether the call was rejected."""
        guarded = self.guards.guard(name)(succeed)
        begun_s = time.monotonic()
        try:
            await guarded()
        except GuardRejected:
            return {"refused": True, "ms": (time.monotonic() - begun_s) * 1e3}
        return {"refused": False, "ms": (time.monotonic() - begun_s) * 1e3}

    async def watch(self, name: str, *, busy: bool) -> float:
        """Call until rejected, without a pause or each millisecond; returns the instant of the rejection."""
        guarded = self.guards.guard(name)(succeed)
        ends_s = time.monotonic() + GIVE_UP_S
        while time.monotonic() < ends_s:
            try:
                await guarded()
            except GuardRejected:
                return time.monotonic()
            if not busy:
                await asyncio.sleep(POLL_S)
        raise RuntimeError(f"{name} was not seen to open")

    async def trip(self, name: str) -> float:
        """Open the breaker."""
        return await trip(self.guards, name)

    async def opened(self, name: str) -> None:
        """Wait until the opening is known in this process."""
        guard = self.guards.guard(name)
        await until(lambda: guard.state() is not BreakerState.CLOSED, f"{name} is open")

    async def probe_burst(self, name: str, *, at_s: float, size: int) -> int:
        """Call concurrently; returns the number of admitted calls once all are admitted or rejected."""
        self._release.clear()
        entered, rejected = 0, 0
        all_arrived = asyncio.Event()

        def count() -> None:
            if entered + rejected == size:
                all_arrived.set()

        @self.guards.guard(name)
        async def trial() -> None:
            nonlocal entered
            entered += 1
            count()
            await self._release.wait()

        async def one() -> None:
            nonlocal rejected
            try:
                await trial()
            except GuardRejected:
                rejected += 1
                count()

        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        self._burst = asyncio.gather(*(one() for _ in range(size)))
        await all_arrived.wait()
        return entered

    async def release(self, name: str) -> None:
        """End the probe calls, and wait until the breaker is closed."""
        self._release.set()
        if self._burst is not None:
            await self._burst
        guard = self.guards.guard(name)
        await until(lambda: guard.state() is BreakerState.CLOSED, f"{name} is closed")


async def work(url: str, open_s: float) -> None:
    """Reply to each line with one line."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    worker = Worker(throttle(url, open_s))
    print(json.dumps("ready"), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(worker, command.pop("method"))
        print(json.dumps(await method(**command)), flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
