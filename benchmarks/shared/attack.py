"""Load of exhausted users: nine of ten decisions are for users over their limit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.shared import ours
from benchmarks.shared.bench import LIMIT, USERS, RedisBench
from benchmarks.shared.drive import Tally, closed
from benchmarks.shared.throughput import median

TASKS = 64
EXHAUSTED = tuple(f"e{number:015x}" for number in range(200))
SHARE = 10
"""Every tenth decision is for a user within its limit."""

ROUNDS = 3
CACHES = {"with": {}, "without": {"refused_cache": 0}}
"""The deny cache: with its default size, and without."""


def users() -> Iterator[str]:
    """Generate users, nine of ten of them exhausted."""
    others, exhausted = itertools.cycle(USERS), itertools.cycle(EXHAUSTED)
    return (next(others if number % SHARE == 0 else exhausted) for number in itertools.count())


def attacked(bench: RedisBench) -> dict[str, Any]:
    """Measure decisions per second with and without the cache, and the share of store checks."""
    kept: dict[str, list[dict[str, float]]] = {name: [] for name in CACHES}

    def row(name: str) -> float:
        kept[name].append(asyncio.run(_attack(bench, CACHES[name])))
        return kept[name][-1]["per_s"]

    seen = harness.interleave({name: partial(row, name) for name in CACHES}, min(bench.scale.rounds, ROUNDS))
    table: dict[str, Any] = {
        name: {figure: median(run[figure] for run in runs) for figure in runs[0]}
        for name, runs in kept.items()
    }
    return {**table, "speedup": harness.ratio(seen, "with", "without")}


async def _attack(bench: RedisBench, settings: dict[str, Any]) -> dict[str, float]:
    bench.gauge.empty()
    async with ours.whole(bench.server.url, LIMIT, **settings) as throttle:
        hit = ours.Whole(throttle)
        for user in EXHAUSTED:
            await hit(user, LIMIT.limit)
        await closed(hit, users(), TASKS, bench.scale.warm_s)
        checks, before = hit.store.stats.sent, bench.gauge.read()
        tally = await closed(hit, users(), TASKS, bench.scale.attack_s)
        checks = hit.store.stats.sent - checks
        trips = bench.gauge.read().sent(before, ("evalsha", "eval"))
    return _figures(tally, checks, trips)


def _figures(tally: Tally, checks: int, trips: int) -> dict[str, float]:
    """Compute shares; each admission needs a check, so the others were for rejected requests."""
    return {
        "per_s": tally.per_s,
        "asked_of_refused": (checks - tally.admitted) / max(tally.rejected, 1),
        "asked": checks / tally.decisions,
        "round_trips": trips / tally.decisions,
        "admitted": tally.admitted / tally.decisions,
    }
