"""Bytes that a user costs the server."""

from __future__ import annotations

import asyncio

from autoglm_throttle.model import UserLimit
from benchmarks.shared.contestant import Contestant
from benchmarks.shared.lab import LIMIT, Lab

PARTS = 10
"""Calls in which a user's limit is used up, so that the stamps differ."""

AT_ONCE = 64
LARGE = UserLimit("user-60s", 10_000, 60)


def per_user(lab: Lab, who: Contestant, limit: UserLimit) -> float:
    """Bytes a user, each with the whole limit used up."""
    users = [f"{number:016x}" for number in range(lab.scale.held_users)]

    async def run() -> float:
        async with lab.opened(who, limit) as hit:
            await asyncio.gather(*(hit(f"c{number:015x}") for number in range(AT_ONCE)))  # connects
            before = lab.gauge.read().memory
            for _ in range(PARTS):
                for start in range(0, len(users), AT_ONCE):
                    asked = (hit(user, limit.limit // PARTS) for user in users[start : start + AT_ONCE])
                    if not all(await asyncio.gather(*asked)):
                        raise RuntimeError(f"{who.title}: a user was refused below the limit")
            return (lab.gauge.read().memory - before) / len(users)

    return asyncio.run(run())


def memory(lab: Lab, ours: Contestant, rival: Contestant) -> dict[str, float]:
    """Exact and compact, and the moving window of ``limits``."""
    return {
        "store": per_user(lab, ours, LIMIT),
        "store-compact": per_user(lab, ours, LARGE),
        "moving": per_user(lab, rival, LIMIT),
    }
