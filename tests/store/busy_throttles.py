"""One process of many whole throttles, whose event loop is late by more than the deadline in each turn."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from autoglm_throttle import Demand, Permit
from autoglm_throttle.settings.groups.store import StoreSettings
from tests.store.real_server import Site
from tests.store.store_checks import name

TURN_S = 1.2 * StoreSettings().redis_deadline_s
"""Seconds of computation in each turn of the loop, longer than the deadline. An answer has twenty turns."""


def compute_in_each_turn(loop: asyncio.AbstractEventLoop) -> None:
    end_s = time.perf_counter() + TURN_S
    while time.perf_counter() < end_s:
        pass
    loop.call_soon(compute_in_each_turn, loop)


async def admitted(job: dict[str, Any]) -> int:
    """Send waves of requests of one user, two at a time; a decision without the store is an error here."""
    site = Site(job["url"], job["prefix"], job["limit"])
    await site.connected()
    before, demand = site.fallbacks, Demand(user=name(1))

    async def ask() -> bool:
        verdict = await site.throttle.admit(demand)
        if isinstance(verdict, Permit):
            verdict.settle()
        return isinstance(verdict, Permit)

    async def flow() -> int:
        waves = [await asyncio.gather(*(ask() for _ in range(job["asks"]))) for _ in range(job["waves"])]
        return sum(map(sum, waves))

    compute_in_each_turn(asyncio.get_running_loop())
    count = sum(await asyncio.gather(flow(), flow()))
    assert site.fallbacks == before, site.store
    return count


if __name__ == "__main__":
    for line in sys.stdin:
        print(asyncio.run(admitted(json.loads(line))), flush=True)
