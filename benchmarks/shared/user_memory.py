"""Memory of a user on the server."""

from __future__ import annotations

import asyncio

from autoglm_throttle.types import SUB_BUCKETS, UserLimit
from benchmarks.shared.bench import LIMIT, RedisBench
from benchmarks.shared.candidate import Candidate
from benchmarks.shared.drive import Hit, clock

PARTS = 10
"""Number of calls that use up a limit, so that the timestamps differ."""

AT_ONCE = 64
LARGE = 10_000
"""A limit of which a sixtieth is counted in one byte."""

LARGER = 1_000_000
"""A limit of which a sixtieth needs two bytes."""


async def _charge(hit: Hit, users: list[str], units: int, at_once: int) -> None:
    for start in range(0, len(users), at_once):
        if not all(await asyncio.gather(*(hit(user, units) for user in users[start : start + at_once]))):
            raise RuntimeError("a user was rejected below the limit")


def full(
    bench: RedisBench, candidate: Candidate, limit: UserLimit, *, at_once: int, over_s: float = 0.0
) -> float:
    """Measure the bytes per user, each with the whole limit used up.

    Args:
        at_once: concurrent calls; few enough that the client uses one connection, whose buffers count, too.
        over_s: seconds over which the units are spread, so that each sub-bucket holds some; 0: not spread.
    """
    users = [f"{number:016x}" for number in range(bench.scale.memory_users)]
    parts = SUB_BUCKETS if over_s else PARTS

    async def run() -> float:
        async with bench.opened(candidate, limit) as hit:
            await _charge(hit, [f"c{number:015x}" for number in range(AT_ONCE)], 1, at_once)
            before, begun = bench.gauge.used(), clock()
            for number in range(parts):
                await asyncio.sleep(begun + number * over_s / parts - clock())
                await _charge(hit, users, limit.limit // parts, at_once)
            return (bench.gauge.used() - before) / len(users)

    return asyncio.run(run())


def memory(bench: RedisBench, ours: Candidate, peer: Candidate) -> dict[str, float]:
    """Measure the exact and the compact layout, and the moving window of ``limits``."""
    spread_s = bench.scale.spread_s
    large, larger = (UserLimit(f"user-{spread_s}s", units, spread_s) for units in (LARGE, LARGER))
    return {
        "store": full(bench, ours, LIMIT, at_once=AT_ONCE),
        "store-compact": full(bench, ours, large, at_once=AT_ONCE, over_s=spread_s),
        "store-compact-million": full(bench, ours, larger, at_once=AT_ONCE, over_s=spread_s),
        "moving": full(bench, peer, LIMIT, at_once=1),
    }
