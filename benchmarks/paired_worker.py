"""One run of the workloads of `benchmarks.paired`, printed as JSON: calls per second of CPU time, by name.

It uses public names alone, so that it runs with any version of the package.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial

import httpx

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.resilience.httpx import AsyncGuardTransport

GUARD_CALLS = 100_000
HTTP_CALLS = 3_000
DECISIONS, TOGETHER = 64_000, 64


def per_cpu_second(calls: int, run: Callable[[], object]) -> float:
    """Run some calls once to warm up and once to measure; returns calls per second of CPU time."""
    run()
    began_s = time.process_time()
    run()
    return calls / (time.process_time() - began_s)


def guarded(throttle: Throttle) -> None:
    """Enter the guard of a healthy dependency."""
    for _ in range(GUARD_CALLS):
        with throttle.guard("with"):
            pass


def decorated(throttle: Throttle) -> None:
    """Call a decorated function."""

    @throttle.guard("decorated")
    def call() -> int:
        return 1

    for _ in range(GUARD_CALLS):
        call()


def awaited(throttle: Throttle) -> None:
    """Call a decorated coroutine function."""

    @throttle.guard("awaited")
    async def call() -> int:
        return 1

    async def calls() -> None:
        for _ in range(GUARD_CALLS):
            await call()

    asyncio.run(calls())


def requested(throttle: Throttle) -> None:
    """Send requests through a guarded transport."""
    answer = httpx.MockTransport(lambda _: httpx.Response(200, text="x"))

    async def calls() -> None:
        async with httpx.AsyncClient(transport=AsyncGuardTransport(throttle, answer)) as client:
            for _ in range(HTTP_CALLS):
                await client.get("http://service/")

    asyncio.run(calls())


async def decided(throttle: Throttle) -> float:
    """Decide user limits in Redis, 64 requests at a time; returns decisions per second."""

    async def one(number: int) -> None:
        verdict: object = await throttle.admit(Demand(Priority.HIGH, f"{number % 500:016x}"))
        if isinstance(verdict, Permit):
            verdict.settle()

    async def caller(numbers: range) -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(caller(range(4)) for _ in range(TOGETHER)))
    each = DECISIONS // TOGETHER
    began_s = time.perf_counter()
    await asyncio.gather(*(caller(range(each * k, each * (k + 1))) for k in range(TOGETHER)))
    return each * TOGETHER / (time.perf_counter() - began_s)


def main() -> None:
    """Run every workload; the argument is the URL of a Redis server."""
    logging.getLogger("autoglm_throttle").setLevel(logging.ERROR)
    throttle = Throttle(Settings(gpu="none"))
    found = {
        name: per_cpu_second(calls, partial(run, throttle))
        for name, calls, run in (
            ("guard, with", GUARD_CALLS, guarded),
            ("guard, function", GUARD_CALLS, decorated),
            ("guard, coroutine", GUARD_CALLS, awaited),
            ("guard, HTTP", HTTP_CALLS, requested),
        )
    }
    os.environ |= {"AUTOGLM_THROTTLE_REDIS_URL": sys.argv[1], "AUTOGLM_THROTTLE_RATE_HIGH_RPS": "1000000"}
    shared = Throttle(Settings.from_env(gpu="none", policy="fixed", user_limit="100000/minute"))
    found["Redis decisions"] = asyncio.run(decided(shared))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
