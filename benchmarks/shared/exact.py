"""How many are admitted at most: all at once on a cold key, and round the edges of windows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoglm_throttle.types import UserLimit
from benchmarks.shared import drive
from benchmarks.shared.contestant import Contestant
from benchmarks.shared.drive import Hit
from benchmarks.shared.lab import LIMIT, Lab
from benchmarks.shared.ours import NoAnswer

CROWD = 512
PROCESSES = 4
WORKER = "benchmarks.shared.worker"

EARLY = 0.1
"""Of a window: so long before its end its units are spent at once, and a fixed one then gives the next."""

STEP_S = 0.005
STEPS = 2
PARTS = 100
"""A limit is asked for in so many parts, so that a large one takes no more calls than a small one."""


@dataclass(frozen=True)
class Admission:
    """Units admitted somewhere between two instants."""

    sent_s: float
    answered_s: float
    units: int


def worst(admissions: Sequence[Admission], window_s: float) -> int:
    """The most units that were surely admitted within some window: asked and answered inside it."""
    ordered = sorted(admissions, key=lambda one: one.sent_s)
    most = 0
    for number, first in enumerate(ordered):
        end = first.sent_s + window_s
        inside = 0
        for one in ordered[number:]:
            if one.sent_s > end:
                break
            if one.answered_s <= end:
                inside += one.units
        most = max(most, inside)
    return most


async def crowd(hit: Hit, user: str) -> dict[str, int]:
    """How many of many at once are admitted, and how many get no answer: theirs may count as spent."""
    answers = await asyncio.gather(*(hit(user) for _ in range(CROWD)), return_exceptions=True)
    return {
        "admitted": sum(answer is True for answer in answers),
        "unanswered": sum(isinstance(answer, Exception) for answer in answers),
    }


def cold(lab: Lab, who: Contestant) -> dict[str, int]:
    """Admissions of one crowd on a key that is not there yet."""

    async def run() -> dict[str, int]:
        async with lab.opened(who) as hit:
            return await crowd(hit, "c" * 16)

    return asyncio.run(run())


def processes(lab: Lab, row: str) -> dict[str, int]:
    """The same from several processes at once."""
    lab.gauge.empty()
    command = [sys.executable, "-m", WORKER, lab.server.url, row, "d" * 16]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            _heard(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        counts: Counter[str] = Counter()
        for worker in workers:
            counts.update(json.loads(_heard(worker)))
        return dict(counts)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _heard(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a worker ended without an answer")
    return line


async def attack(hit: Hit, user: str, limit: UserLimit) -> float:
    """The worst window over the limit, for one who asks for all there is whenever there may be some."""
    window, part = float(limit.window_s), max(limit.limit // PARTS, 1)
    admissions: list[Admission] = []

    async def ask(units: int) -> None:
        sent, allowed = drive.clock(), False
        with contextlib.suppress(NoAnswer):  # a long pause of the machine is no admission
            allowed = await hit(user, units)
        if allowed:
            admissions.append(Admission(sent, drive.clock(), units))

    connecting = (hit(f"{user[1:]}{number % 16:x}") for number in range(PARTS))
    await asyncio.gather(*connecting, return_exceptions=True)
    begun = drive.clock()
    await ask(1)
    await asyncio.sleep(begun + (1.0 - EARLY) * window - drive.clock())
    await asyncio.gather(*(ask(part) for _ in range(PARTS)))
    while drive.clock() < begun + 2 * window:
        await asyncio.gather(*(ask(part) for _ in range(STEPS)))
        await asyncio.sleep(STEP_S)
    return worst(admissions, window) / limit.limit


def edges(lab: Lab, rows: Mapping[str, Contestant]) -> dict[str, float]:
    """The worst window of each, over its limit; ours in both forms."""
    window_s = lab.scale.window_s
    small = UserLimit("user-small", LIMIT.limit, window_s)
    large = UserLimit("user-large", 12 * LIMIT.limit, window_s)
    jobs = {name: (who, small) for name, who in rows.items()}
    if "store" in rows:
        jobs["store-compact"] = (rows["store"], large)

    async def run() -> dict[str, float]:
        lab.gauge.empty()
        async with contextlib.AsyncExitStack() as stack:
            hits = [
                (await stack.enter_async_context(who.open(lab.server.url, limit)), limit)
                for who, limit in jobs.values()
            ]
            ratios = await asyncio.gather(
                *(attack(hit, f"e{number:015x}", limit) for number, (hit, limit) in enumerate(hits))
            )
        return dict(zip(jobs, ratios, strict=True))

    return asyncio.run(run())


def exactness(lab: Lab, rows: Mapping[str, Contestant], attacked: Mapping[str, Contestant]) -> dict[str, Any]:
    """All of it."""
    ours = [name for name in ("store", "throttle") if name in rows]
    return {
        "limit": LIMIT.limit,
        "crowd": CROWD,
        "cold": {name: cold(lab, rows[name]) for name in rows},
        "processes": {name: processes(lab, name) for name in ours},
        "worst_window": edges(lab, attacked),
    }
