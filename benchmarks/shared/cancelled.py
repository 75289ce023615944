"""A quarter of the callers goes away while their question is asked: whose answer does who stays get?"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from autoglm_throttle.types import UserLimit
from benchmarks.shared import drive
from benchmarks.shared.contestant import Contestant
from benchmarks.shared.drive import Hit
from benchmarks.shared.lab import Lab

SHARE = 0.25
TASKS = 64
ONE = UserLimit("user-60s", 1, 60)
"""Every second user has used this up before, so the right answer to each is known."""


async def run(hit: Hit, users: list[str], leave_s: float = 0.0) -> dict[str, Any]:
    """Ask for every user once; odd ones are exhausted.

    Args:
        leave_s: a quarter of the callers leaves, each up to so much later; 0: nobody does.
    """
    loop = asyncio.get_running_loop()
    chance = random.Random(1)
    left = iter(enumerate(users))
    heard: Counter[str] = Counter()

    async def one() -> None:
        for number, user in left:
            asked = asyncio.ensure_future(hit(user))
            if leave_s and chance.random() < SHARE:
                loop.call_later(chance.uniform(0.0, leave_s), asked.cancel)
            try:
                heard["right" if await asked == (number % 2 == 0) else "wrong"] += 1
            except asyncio.CancelledError:
                heard["cancelled"] += 1
            except Exception as error:
                heard[type(error).__name__] += 1

    begun = drive.clock()
    await asyncio.gather(*(one() for _ in range(TASKS)))
    spent = drive.clock() - begun
    known = {name: heard.pop(name, 0) for name in ("right", "wrong", "cancelled")}
    return {"per_s": len(users) / spent, **known, "errors": dict(heard)}


def measure(lab: Lab, who: Contestant, count: int) -> dict[str, Any]:
    """Without and with cancellations, which come at any time of a usual wait.

    Throughput counts requests begun, whatever became of them.
    """

    async def both() -> dict[str, Any]:
        async with lab.opened(who, ONE) as hit:
            calm = await run(hit, await _half_exhausted(hit, "a", count))
            users = await _half_exhausted(hit, "b", count)
            before = lab.gauge.read()
            rough = await run(hit, users, TASKS / calm["per_s"])
            opened = lab.gauge.read().opened - before.opened
        return {
            **rough,
            "opened": opened,
            "calm_per_s": calm["per_s"],
            "kept": rough["per_s"] / calm["per_s"],
        }

    return asyncio.run(both())


async def _half_exhausted(hit: Hit, letter: str, count: int) -> list[str]:
    users = [f"{letter}{number:015x}" for number in range(count)]
    odd = users[1::2]
    for start in range(0, len(odd), TASKS):
        await asyncio.gather(*(hit(user) for user in odd[start : start + TASKS]))
    return users
