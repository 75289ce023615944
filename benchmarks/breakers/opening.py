"""How long after an opening in one process another one refuses."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from autoglm_throttle import Throttle
from benchmarks.breakers import worker
from benchmarks.breakers.process import Process
from benchmarks.breakers.scale import Scale
from tests.store.server import RedisServer

OPEN_S = 60.0


async def _seen(guards: Throttle, other: Process, name: str, *, busy: bool) -> float:
    """Milliseconds from the failure that opened a guard here until a call is refused there."""
    if other.ask("call", name)["refused"]:
        raise RuntimeError(f"{name} was open already")
    other.say("watch", name, busy=busy)
    await asyncio.sleep(2 * worker.LOOK_S)
    opened_s = await worker.trip(guards, name)
    seen_s: float = other.hear()
    return (seen_s - opened_s) * 1e3


async def openings(server: RedisServer, scale: Scale) -> dict[str, Any]:
    """Openings met by a process that waits for them idle, by one that is busy, and by new ones at first."""
    guards = worker.throttle(server.url, OPEN_S)
    found: dict[str, Any] = {}
    try:
        with Process(server.url, OPEN_S) as other:
            for kind in ("idle", "busy"):
                names = (f"{kind}-{number}" for number in range(scale.openings))
                waits = [await _seen(guards, other, name, busy=kind == "busy") for name in names]
                found[kind] = {"median_ms": statistics.median(waits), "max_ms": max(waits), "of": len(waits)}
        first = [await _cold(server, guards, f"cold-{number}") for number in range(scale.cold)]
    finally:
        guards.stop()
    found["cold"] = {
        "refused": sum(call["refused"] for call in first),
        "median_ms": statistics.median(call["ms"] for call in first),
        "max_ms": max(call["ms"] for call in first),
        "of": len(first),
    }
    return found


async def _cold(server: RedisServer, guards: Throttle, name: str) -> dict[str, Any]:
    """The very first call of a process, of a guard that was opened before."""
    await worker.trip(guards, name)
    with Process(server.url, OPEN_S) as other:
        answer: dict[str, Any] = other.ask("call", name)
        return answer
