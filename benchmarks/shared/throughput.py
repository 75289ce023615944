"""Decisions per second of concurrent tasks, and latency at a fixed rate of arrivals."""

from __future__ import annotations

import asyncio
import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autoglm_throttle.store.protocol import script
from benchmarks import harness
from benchmarks.shared import drive
from benchmarks.shared.bench import LIMIT, USERS, RedisBench
from benchmarks.shared.candidate import SCRIPTS, Candidate
from benchmarks.shared.drive import Hit, Tally, arrivals, closed, open_loop, quantile
from benchmarks.shared.floor import FLOORS, Batch, Floor
from benchmarks.shared.gauge import Reading
from benchmarks.shared.ours import Whole

CONTROL = "control"
"""A fixed amount of processor work; its variation is that of the machine."""

CONTROL_S = 0.1
OPEN_RPS = 5000.0
OPEN_TASKS = 64
WARMINGS = 20
MOST_BATCHES = 2000
"""Number of prebuilt batches of a floor; it repeats them."""
OPEN_ROWS = ("store", "throttle", "moving-raised", "moving-blocking")


@dataclass(frozen=True)
class Run:
    """One row in one round."""

    tally: Tally
    round_trips: int
    connections: int
    server_s: float

    @classmethod
    def between(cls, tally: Tally, before: Reading, after: Reading, sends: tuple[str, ...]) -> Run:
        """Combine the results of a run with two readings of the server."""
        return cls(tally, after.sent(before, sends), after.clients, after.cpu_s - before.cpu_s)


@dataclass
class Runs:
    """All runs of one row."""

    runs: list[Run] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return medians over the rounds, the sum of errors and the most connections."""
        tallies = [run.tally for run in self.runs]
        errors: Counter[str] = sum((tally.errors for tally in tallies), Counter())
        return {
            "per_s": median(tally.per_s for tally in tallies),
            "spread": max(t.per_s for t in tallies) / max(min(t.per_s for t in tallies), 1e-9),
            "p50_ms": median(quantile(tally.waits_s, 0.5) * 1e3 for tally in tallies),
            "p99_ms": median(quantile(tally.waits_s, 0.99) * 1e3 for tally in tallies),
            "answered": sum(tally.decisions for tally in tallies),
            "refused": sum(tally.rejected for tally in tallies),
            "errors": dict(errors),
            "round_trips": median(_each(run.round_trips, run) for run in self.runs),
            "connections": max(run.connections for run in self.runs),
            "server_us": median(_each(run.server_s * 1e6, run) for run in self.runs),
        }


def median(values: Iterable[float]) -> float:
    """Return the median of any iterable."""
    return float(statistics.median(values))


def _each(amount: float, run: Run) -> float:
    return amount / max(run.tally.decisions, 1)


def decisions(bench: RedisBench, rows: Mapping[str, Candidate]) -> dict[str, Any]:
    """Measure every row at every depth, interleaved; results by depth, then by row."""
    found: dict[str, Any] = {}
    for tasks in bench.scale.depths:
        kept = {name: Runs() for name in (*rows, *FLOORS)}
        jobs: dict[str, Callable[[], float]] = {CONTROL: busy}
        jobs |= {name: partial(_row, bench, candidate, tasks, kept[name]) for name, candidate in rows.items()}
        jobs |= {name: partial(_floor, bench, name, tasks, kept[name]) for name in FLOORS}
        seen = harness.interleave(jobs, bench.scale.rounds)
        table = {name: runs.summary() for name, runs in kept.items()}
        for name, row in table.items():
            row["ours_over_it"] = _ratio(seen, "store", name)
            row["whole_over_it"] = _ratio(seen, "throttle", name)
        found[str(tasks)] = {"rows": table, CONTROL: {"spread": max(seen[CONTROL]) / min(seen[CONTROL])}}
    return found


def _ratio(seen: Mapping[str, Sequence[float]], name: str, base: str) -> float | None:
    return harness.ratio(seen, name, base) if name in seen else None


def busy() -> float:
    """Measure the rounds of a fixed loop per second."""
    begun, count = drive.clock(), 0
    while (spent := drive.clock() - begun) < CONTROL_S:
        sum(range(1000))
        count += 1
    return count / spent


def _row(bench: RedisBench, candidate: Candidate, tasks: int, kept: Runs) -> float:
    async def run() -> Run:
        async with bench.opened(candidate) as hit:
            users = itertools.cycle(USERS)
            before = await warm(bench, hit, users, tasks)
            tally = await evaluated(hit, closed(hit, users, tasks, bench.scale.row_s))
            if tally.rejected:  # there are too many users for that
                tally.errors["refused"] += tally.rejected
            return Run.between(tally, before, bench.gauge.read(), candidate.sends)

    kept.runs.append(asyncio.run(run()))
    return kept.runs[-1].tally.per_s


async def evaluated(hit: Hit, run: Awaitable[Tally]) -> Tally:
    """Run, and count decisions made without the store as errors."""
    before = hit.local_decisions if isinstance(hit, Whole) else 0
    tally = await run
    if isinstance(hit, Whole) and (local_decisions := hit.local_decisions - before):
        tally.errors["without the store"] += local_decisions
        tally.admitted -= local_decisions
    return tally


async def warm(bench: RedisBench, hit: Hit, users: Iterator[str], tasks: int) -> Reading:
    """Run until the number of connections is constant: a pool grows for a while."""
    clients = -1
    for _ in range(WARMINGS):
        await closed(hit, users, tasks, bench.scale.warm_s)
        reading = bench.gauge.read()
        if reading.clients <= clients:
            break
        clients = reading.clients
    return reading


def _floor(bench: RedisBench, name: str, tasks: int, kept: Runs) -> float:
    bench.gauge.empty()
    bench.server.command("SCRIPT", "LOAD", script())
    floor = Floor(bench.server.port, _batches(name, tasks))
    try:
        floor.run(bench.scale.warm_s)
        before = bench.gauge.read()
        tally = floor.run(bench.scale.row_s)
        kept.runs.append(Run.between(tally, before, bench.gauge.read(), SCRIPTS))
    finally:
        floor.close()
    return tally.per_s


@functools.cache
def _batches(name: str, tasks: int) -> list[Batch]:
    last = min(len(USERS), tasks * MOST_BATCHES)
    starts = range(0, last - tasks + 1, tasks)
    return [FLOORS[name](USERS[start : start + tasks], LIMIT) for start in starts]


def open_loops(bench: RedisBench, rows: Mapping[str, Candidate]) -> dict[str, Any]:
    """Measure Poisson arrivals at a fixed rate, from the due instant; the control decides nothing."""
    tallies: dict[str, list[Tally]] = {
        name: [] for name in (CONTROL, *(row for row in OPEN_ROWS if row in rows))
    }

    def row(name: str) -> float:
        due = arrivals(OPEN_RPS, bench.scale.open_s, len(tallies[name]))
        if name == CONTROL:
            tally = asyncio.run(open_loop(nothing, itertools.cycle(USERS), due))
        else:
            tally = asyncio.run(_open(bench, rows[name], due))
        tallies[name].append(tally)
        return quantile(tally.waits_s, 0.99)

    harness.interleave({name: partial(row, name) for name in tallies}, bench.scale.open_rounds)
    return {name: _opened(runs) for name, runs in tallies.items()}


async def nothing(user: str, units: int = 1) -> bool:  # noqa: ARG001
    """Decide nothing, after one iteration of the event loop."""
    await asyncio.sleep(0)
    return True


async def _open(bench: RedisBench, candidate: Candidate, due: list[float]) -> Tally:
    async with bench.opened(candidate) as hit:
        users = itertools.cycle(USERS)
        await warm(bench, hit, users, OPEN_TASKS)
        return await evaluated(hit, open_loop(hit, users, due))


def _opened(runs: Sequence[Tally]) -> dict[str, Any]:
    return {
        "p50_ms": median(quantile(run.waits_s, 0.5) * 1e3 for run in runs),
        "p99_ms": median(quantile(run.waits_s, 0.99) * 1e3 for run in runs),
        "lag_p99_ms": median(quantile(run.lags_s, 0.99) * 1e3 for run in runs),
        "errors": dict(sum((run.errors for run in runs), Counter())),
        "answered": sum(run.decisions for run in runs),
    }
