"""Decisions of one process during outages of the server: frozen, killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import Any

from autoglm_throttle.store.health import HealthState
from benchmarks.shared import ours
from benchmarks.shared.bench import LIMIT, USERS, RedisBench
from benchmarks.shared.drive import clock, quantile
from benchmarks.shared.throughput import CONTROL, median
from tests.store.sentinel import SentinelPair

ALONE = 3
"""Number of first decisions that may still wait for the server."""

AFTER = 100
TICK_S = 0.002
PACE_S = 0.01
"""Seconds between two decisions until the server is used again."""

GIVE_UP_S = 10.0


@contextlib.asynccontextmanager
async def lags() -> AsyncGenerator[list[float]]:
    """Collect the lags of the event loop."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            begun = clock()
            await asyncio.sleep(TICK_S)
            late.append(clock() - begun - TICK_S)

    watching = asyncio.ensure_future(watch())
    try:
        yield late
    finally:
        watching.cancel()


async def timed(hit: ours.Whole, user: str) -> float:
    """Measure the seconds of one decision."""
    begun = clock()
    await hit(user)
    return clock() - begun


async def _settled(hit: ours.Whole) -> None:
    """Wait until the store is used."""
    until = clock() + GIVE_UP_S
    while clock() < until:
        await hit(USERS[0])
        if hit.store.state is HealthState.UP:
            return
        await asyncio.sleep(PACE_S)
    raise RuntimeError("the store was not used again")


async def _outage(hit: ours.Whole, begin: Callable[[], None], end: Callable[[], None]) -> dict[str, float]:
    await _settled(hit)
    await asyncio.sleep(0.1)
    async with lags() as late:
        await asyncio.sleep(0.3)
        usual, late[:] = max(late), []
        begin()
        waits = [await timed(hit, user) for user in USERS[1 : 1 + ALONE]]
        begun = clock()
        for user in USERS[100 : 100 + AFTER]:
            waits.append(await timed(hit, user))
            await asyncio.sleep(TICK_S)
        during = max(late)
    end()
    restored_s = clock()
    await _settled(hit)
    return {
        "first_ms": waits[0] * 1e3,
        "after_third_ms": max(waits[ALONE:]) * 1e3,
        "after_third_p99_ms": quantile(waits[ALONE:], 0.99) * 1e3,
        "lag_ms": during * 1e3,
        CONTROL: usual * 1e3,
        "recovery_s": clock() - restored_s,
        "away_s": restored_s - begun,
    }


async def _failover(pair: SentinelPair) -> dict[str, float]:
    """Measure decisions while a Sentinel promotes the replica of a killed primary."""
    async with ours.whole(pair.url, LIMIT) as throttle, lags() as late:
        hit = ours.Whole(throttle)
        await _settled(hit)
        await asyncio.sleep(0.3)
        usual, late[:] = max(late), []
        pair.primary.kill()
        begun, waits, users = clock(), [], itertools.cycle(USERS)
        while clock() < begun + GIVE_UP_S:
            waits.append(await timed(hit, next(users)))
            await asyncio.sleep(PACE_S)
            if pair.failed_over() and hit.store.state is HealthState.UP:
                break
        return {
            "slowest_ms": max(waits) * 1e3,
            "lag_ms": max(late) * 1e3,
            CONTROL: usual * 1e3,
            "recovery_s": clock() - begun,
        }


def failure(bench: RedisBench) -> dict[str, Any]:
    """Compute medians over outages of each kind. An exception in a decision ends the run."""
    server = bench.server
    kinds = {"frozen": (server.pause, server.resume), "killed": (server.kill, server.restart)}

    async def run() -> dict[str, Any]:
        found = {}
        for name, (begin, end) in kinds.items():
            bench.gauge.empty()
            async with ours.whole(server.url, LIMIT) as throttle:
                outages = [
                    await _outage(ours.Whole(throttle), begin, end) for _ in range(bench.scale.outages)
                ]
            found[name] = {figure: median(one[figure] for one in outages) for figure in outages[0]}
            found[name]["worst_first_ms"] = max(one["first_ms"] for one in outages)
        return found

    found = asyncio.run(run())
    with SentinelPair(server.binary) as pair:
        found["failover"] = asyncio.run(_failover(pair))
    return found
