"""Nine of ten decisions are for users whose limit is used up: what does the store hear of it?"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.shared import ours
from benchmarks.shared.drive import Tally, closed
from benchmarks.shared.lab import LIMIT, USERS, Lab
from benchmarks.shared.pace import median

TASKS = 64
EXHAUSTED = tuple(f"e{number:015x}" for number in range(200))
SHARE = 10
"""One of so many decisions is for somebody else."""

ROUNDS = 3
CACHES = {"with": {}, "without": {"refused_cache": 0}}
"""The known-refused cache: as it comes, and none."""


def users() -> Iterator[str]:
    """Nine of ten exhausted."""
    others, exhausted = itertools.cycle(USERS), itertools.cycle(EXHAUSTED)
    return (next(others if number % SHARE == 0 else exhausted) for number in itertools.count())


def attacked(lab: Lab) -> dict[str, Any]:
    """Decisions a second with and without the cache, and for which share of them the store was asked."""
    kept: dict[str, list[dict[str, float]]] = {name: [] for name in CACHES}

    def row(name: str) -> float:
        kept[name].append(asyncio.run(_attack(lab, CACHES[name])))
        return kept[name][-1]["per_s"]

    seen = harness.interleave({name: partial(row, name) for name in CACHES}, min(lab.scale.rounds, ROUNDS))
    table: dict[str, Any] = {
        name: {figure: median(run[figure] for run in runs) for figure in runs[0]}
        for name, runs in kept.items()
    }
    return {**table, "speedup": harness.ratio(seen, "with", "without")}


async def _attack(lab: Lab, settings: dict[str, Any]) -> dict[str, float]:
    lab.gauge.empty()
    async with ours.whole(lab.server.url, LIMIT, **settings) as throttle:
        hit = ours.Whole(throttle)
        for user in EXHAUSTED:
            await hit(user, LIMIT.limit)
        await closed(hit, users(), TASKS, lab.scale.warm_s)
        asked, before = hit.store.stats.sent, lab.gauge.read()
        tally = await closed(hit, users(), TASKS, lab.scale.attack_s)
        asked = hit.store.stats.sent - asked
        trips = lab.gauge.read().sent(before, ("evalsha", "eval"))
    return _figures(tally, asked, trips)


def _figures(tally: Tally, asked: int, trips: int) -> dict[str, float]:
    """Whoever was admitted had to be asked for; of the refused, that is what the cache spares."""
    return {
        "per_s": tally.per_s,
        "asked_of_refused": (asked - tally.admitted) / max(tally.refused, 1),
        "asked": asked / tally.decisions,
        "round_trips": trips / tally.decisions,
        "admitted": tally.admitted / tally.decisions,
    }
