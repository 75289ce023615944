"""Delay between an opening in one process and the first rejection in another."""

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


async def _notification_ms(guards: Throttle, other: Process, name: str, *, busy: bool) -> float:
    """Measure the milliseconds from the failure that opened a guard to a rejection in the other process."""
    if other.request("call", name)["refused"]:
        raise RuntimeError(f"{name} was open already")
    other.send("watch", name, busy=busy)
    await asyncio.sleep(2 * worker.POLL_S)
    opened_s = await worker.trip(guards, name)
    seen_s: float = other.receive()
    return (seen_s - opened_s) * 1e3


async def openings(server: RedisServer, scale: Scale) -> dict[str, Any]:
    """Measure openings in an idle process, in a busy one, and at the first call of new processes."""
    guards = worker.throttle(server.url, OPEN_S)
    found: dict[str, Any] = {}
    try:
        with Process(server.url, OPEN_S) as other:
            for kind in ("idle", "busy"):
                names = (f"{kind}-{number}" for number in range(scale.openings))
                waits = [await _notification_ms(guards, other, name, busy=kind == "busy") for name in names]
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
    """Measure the first call of a process to a guard that was opened before."""
    await worker.trip(guards, name)
    with Process(server.url, OPEN_S) as other:
        answer: dict[str, Any] = other.request("call", name)
        return answer
