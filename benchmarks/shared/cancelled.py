"""Cancellation: a quarter of the callers is cancelled during the check; replies of the others must match."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from autoglm_throttle.types import UserLimit
from benchmarks.shared import drive
from benchmarks.shared.bench import RedisBench
from benchmarks.shared.candidate import Candidate
from benchmarks.shared.drive import Hit

SHARE = 0.25
TASKS = 64
ONE = UserLimit("user-60s", 1, 60)
"""Limit that every second user has used up, so that the right decision is known."""


async def run(hit: Hit, users: list[str], leave_s: float = 0.0) -> dict[str, Any]:
    """Decide once for every user; odd ones are exhausted.

    Args:
        leave_s: a quarter of the callers is cancelled within this time; 0: none.
    """
    loop = asyncio.get_running_loop()
    rng = random.Random(1)
    pending = iter(enumerate(users))
    results: Counter[str] = Counter()

    async def one() -> None:
        for number, user in pending:
            decision = asyncio.ensure_future(hit(user))
            if leave_s and rng.random() < SHARE:
                loop.call_later(rng.uniform(0.0, leave_s), decision.cancel)
            try:
                results["right" if await decision == (number % 2 == 0) else "wrong"] += 1
            except asyncio.CancelledError:
                results["cancelled"] += 1
            except Exception as error:
                results[type(error).__name__] += 1

    begun = drive.clock()
    await asyncio.gather(*(one() for _ in range(TASKS)))
    spent = drive.clock() - begun
    known = {name: results.pop(name, 0) for name in ("right", "wrong", "cancelled")}
    return {"per_s": len(users) / spent, **known, "errors": dict(results)}


def measure(bench: RedisBench, candidate: Candidate, count: int) -> dict[str, Any]:
    """Measure without and with cancellations, at random times of a usual wait.

    Throughput counts started requests with any result.
    """

    async def both() -> dict[str, Any]:
        async with bench.opened(candidate, ONE) as hit:
            calm = await run(hit, await _half_exhausted(hit, "a", count))
            users = await _half_exhausted(hit, "b", count)
            before = bench.gauge.read()
            disturbed = await run(hit, users, TASKS / calm["per_s"])
            opened = bench.gauge.read().opened - before.opened
        return {
            **disturbed,
            "opened": opened,
            "calm_per_s": calm["per_s"],
            "kept": disturbed["per_s"] / calm["per_s"],
        }

    return asyncio.run(both())


async def _half_exhausted(hit: Hit, letter: str, count: int) -> list[str]:
    users = [f"{letter}{number:015x}" for number in range(count)]
    odd = users[1::2]
    for start in range(0, len(odd), TASKS):
        await asyncio.gather(*(hit(user) for user in odd[start : start + TASKS]))
    return users
