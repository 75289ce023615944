"""Bytes that a user costs the server."""

from __future__ import annotations

import asyncio

from autoglm_throttle.types import SUB_BUCKETS, UserLimit
from benchmarks.shared.contestant import Contestant
from benchmarks.shared.drive import Hit, clock
from benchmarks.shared.lab import LIMIT, Lab

PARTS = 10
"""Calls in which a user's limit is used up, so that the stamps differ."""

AT_ONCE = 64
LARGE = 10_000
"""Of which a sixtieth is counted in a byte."""

LARGER = 1_000_000
"""Of which it takes two."""


async def _charge(hit: Hit, users: list[str], units: int, at_once: int) -> None:
    for start in range(0, len(users), at_once):
        if not all(await asyncio.gather(*(hit(user, units) for user in users[start : start + at_once]))):
            raise RuntimeError("a user was refused below the limit")


def full(lab: Lab, who: Contestant, limit: UserLimit, *, at_once: int, over_s: float = 0.0) -> float:
    """Bytes a user, each with the whole limit used up.

    Args:
        at_once: calls; few enough that the client keeps to one connection, whose buffers would count, too.
        over_s: seconds over which the units are spread, so that each sub-bucket holds some; 0: not spread.
    """
    users = [f"{number:016x}" for number in range(lab.scale.held_users)]
    parts = SUB_BUCKETS if over_s else PARTS

    async def run() -> float:
        async with lab.opened(who, limit) as hit:
            await _charge(hit, [f"c{number:015x}" for number in range(AT_ONCE)], 1, at_once)
            before, begun = lab.gauge.used(), clock()
            for number in range(parts):
                await asyncio.sleep(begun + number * over_s / parts - clock())
                await _charge(hit, users, limit.limit // parts, at_once)
            return (lab.gauge.used() - before) / len(users)

    return asyncio.run(run())


def memory(lab: Lab, ours: Contestant, rival: Contestant) -> dict[str, float]:
    """Exact and compact, and the moving window of ``limits``."""
    spread_s = lab.scale.spread_s
    large, larger = (UserLimit(f"user-{spread_s}s", units, spread_s) for units in (LARGE, LARGER))
    return {
        "store": full(lab, ours, LIMIT, at_once=AT_ONCE),
        "store-compact": full(lab, ours, large, at_once=AT_ONCE, over_s=spread_s),
        "store-compact-million": full(lab, ours, larger, at_once=AT_ONCE, over_s=spread_s),
        "moving": full(lab, rival, LIMIT, at_once=1),
    }
