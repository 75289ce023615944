"""Exactness: the most admissions at once on a cold key, and around the edges of windows."""

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
from benchmarks.shared.bench import LIMIT, RedisBench
from benchmarks.shared.candidate import Candidate
from benchmarks.shared.drive import Hit
from benchmarks.shared.ours import NoAnswer

BURST_SIZE = 512
PROCESSES = 4
WORKER = "benchmarks.shared.worker"

EARLY = 0.1
"""Share of a window before its end at which its units are spent, before a fixed window renews them."""

STEP_S = 0.005
STEPS = 2
PARTS = 100
"""Number of calls that use up a limit, so that a large one takes no more calls than a small one."""


@dataclass(frozen=True)
class Admission:
    """Units admitted between two instants."""

    sent_s: float
    answered_s: float
    units: int


def worst(admissions: Sequence[Admission], window_s: float) -> int:
    """Return the most units that were certainly admitted within one window: sent and answered in it."""
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


async def burst(hit: Hit, user: str) -> dict[str, int]:
    """Count the admissions of a burst, and the calls without a reply, which may have been charged."""
    answers = await asyncio.gather(*(hit(user) for _ in range(BURST_SIZE)), return_exceptions=True)
    return {
        "admitted": sum(answer is True for answer in answers),
        "unanswered": sum(isinstance(answer, Exception) for answer in answers),
    }


def cold(bench: RedisBench, candidate: Candidate) -> dict[str, int]:
    """Count the admissions of one burst on a key that does not exist yet."""

    async def run() -> dict[str, int]:
        async with bench.opened(candidate) as hit:
            return await burst(hit, "c" * 16)

    return asyncio.run(run())


def processes(bench: RedisBench, row: str) -> dict[str, int]:
    """Count the admissions of simultaneous bursts of several processes."""
    bench.gauge.empty()
    command = [sys.executable, "-m", WORKER, bench.server.url, row, "d" * 16]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            _read_line(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        counts: Counter[str] = Counter()
        for worker in workers:
            counts.update(json.loads(_read_line(worker)))
        return dict(counts)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _read_line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a worker ended without a reply")
    return line


async def attack(hit: Hit, user: str, limit: UserLimit) -> float:
    """Return the worst window over the limit, for a client that requests all units as early as possible."""
    window, part = float(limit.window_s), max(limit.limit // PARTS, 1)
    admissions: list[Admission] = []

    async def request(units: int) -> None:
        sent, allowed = drive.clock(), False
        with contextlib.suppress(NoAnswer):  # a long pause of the machine is no admission
            allowed = await hit(user, units)
        if allowed:
            admissions.append(Admission(sent, drive.clock(), units))

    connecting = (hit(f"{user[1:]}{number % 16:x}") for number in range(PARTS))
    await asyncio.gather(*connecting, return_exceptions=True)
    begun = drive.clock()
    await request(1)
    await asyncio.sleep(begun + (1.0 - EARLY) * window - drive.clock())
    await asyncio.gather(*(request(part) for _ in range(PARTS)))
    while drive.clock() < begun + 2 * window:
        await asyncio.gather(*(request(part) for _ in range(STEPS)))
        await asyncio.sleep(STEP_S)
    return worst(admissions, window) / limit.limit


def edges(bench: RedisBench, rows: Mapping[str, Candidate]) -> dict[str, float]:
    """Measure the worst window of each candidate, over its limit; the package in both layouts."""
    window_s = bench.scale.window_s
    small = UserLimit("user-small", LIMIT.limit, window_s)
    large = UserLimit("user-large", 12 * LIMIT.limit, window_s)
    jobs = {name: (candidate, small) for name, candidate in rows.items()}
    if "store" in rows:
        jobs["store-compact"] = (rows["store"], large)

    async def run() -> dict[str, float]:
        bench.gauge.empty()
        async with contextlib.AsyncExitStack() as stack:
            hits = [
                (await stack.enter_async_context(candidate.open(bench.server.url, limit)), limit)
                for candidate, limit in jobs.values()
            ]
            ratios = await asyncio.gather(
                *(attack(hit, f"e{number:015x}", limit) for number, (hit, limit) in enumerate(hits))
            )
        return dict(zip(jobs, ratios, strict=True))

    return asyncio.run(run())


def exactness(
    bench: RedisBench, rows: Mapping[str, Candidate], attacked: Mapping[str, Candidate]
) -> dict[str, Any]:
    """Measure cold keys, several processes and the worst windows."""
    ours = [name for name in ("store", "throttle") if name in rows]
    return {
        "limit": LIMIT.limit,
        "crowd": BURST_SIZE,
        "cold": {name: cold(bench, rows[name]) for name in rows},
        "processes": {name: processes(bench, name) for name in ours},
        "worst_window": edges(bench, attacked),
    }
