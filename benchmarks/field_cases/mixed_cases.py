"""Short and long requests on the same servers."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.field_cases.call import Kind
from benchmarks.field_cases.case import Bar, Case, Figures, Found, Job, Rows, ratio, spread_of
from benchmarks.field_cases.limiters import maker
from benchmarks.field_cases.plants import servers
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import Rates, Stream, World

SERVERS = 8
SHORT_S, LONG_S = 0.010, 5.0
SHORT_SHARE = 0.9
CAPACITY_RPS = SERVERS / (SHORT_SHARE * SHORT_S + (1.0 - SHORT_SHARE) * LONG_S)

HAND_SET = SERVERS * 3 // 2
SWEPT = ("fixed:6", "fixed:8", "fixed:10", "fixed:16", "fixed:8:unqueued", "fixed:10:unqueued")
MIXES = 30


def _lasting(seconds: float, _: random.Random) -> float:
    return seconds


def _kind(name: str, seconds: float, slo_s: float) -> Kind:
    return Kind(name, slo_s, declares_slo=True, draw_work=functools.partial(_lasting, seconds))


SHORT, LONG = _kind("short", SHORT_S, 0.5), _kind("long", LONG_S, 20.0)

_STEPS: dict[str, Rates] = {
    "0.5x": ((0, 0.5),),
    "2x": ((0, 0.5), (30, 2.0)),
    "5x": ((0, 0.5), (30, 5.0)),
    "2x from the start": ((0, 2.0),),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds with their rates, on servers."""

    servers: int
    kinds: Sequence[tuple[Kind, Rates]]
    window: tuple[float, float]


def standard(variant: str) -> Mix:
    """Return 90 % of 10 ms and 10 % of 5 s."""
    shares = ((SHORT, SHORT_SHARE), (LONG, 1.0 - SHORT_SHARE))
    rates = _STEPS[variant]
    return Mix(
        SERVERS,
        [
            (kind, [(at_s, share * multiple * CAPACITY_RPS) for at_s, multiple in rates])
            for kind, share in shares
        ],
        (40.0, 180.0),
    )


def drawn(number: int) -> Mix:
    """Draw two or three kinds.

    Servers 2, 4, 8 or 16; times 5 ms to 5 s (log); the work is shared by a Dirichlet distribution (1, 1, 1);
    objectives of 4 to 20 times the own time, at least 0.5 s; load 1.2 to 5 times the capacity (log), in half
    of the draws from the start, else from 0.5 at 20 s on.
    """
    rng = random.Random(f"field mix {number}")
    count = rng.choice((2, 4, 8, 16))
    times_s = sorted(_log(rng, 0.005, 5.0) for _ in range(rng.choice((2, 3))))
    shares = [rng.gammavariate(1.0, 1.0) + 1e-3 for _ in times_s]
    multiple = _log(rng, 1.2, 5.0)
    steps = ((0.0, multiple),) if rng.random() < 0.5 else ((0.0, 0.5), (20.0, multiple))
    return Mix(
        count,
        [
            (
                _kind(f"kind{index}", time_s, max(0.5, time_s * rng.uniform(4.0, 20.0))),
                [(at_s, load * count * share / sum(shares) / time_s) for at_s, load in steps],
            )
            for index, (time_s, share) in enumerate(zip(times_s, shares, strict=True))
        ],
        (30.0, 75.0),
    )


def _log(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def simulate(mix: Mix, job: Job, limiter: str) -> tuple[dict[str, float], Tally]:
    """Run a mix, and return the good answers of each kind."""
    kinds = [kind for kind, _ in mix.kinds]
    make = maker(limiter, fixed=mix.servers * 3 // 2, tuning=job.tuning, kinds=kinds)
    world = World(servers(mix.servers), make, Tally(*mix.window), slo_s=min(kind.slo_s for kind in kinds))
    for kind, rates in mix.kinds:
        Stream(world, kind, rates, f"{job.case} {job.variant} {job.seed} {kind.name}")
    tally = world.run(max(kind.slo_s for kind in kinds))
    return {kind.name: float(total(tally.good, kind=kind.name)) for kind in kinds}, tally


def run_standard(job: Job) -> Found:
    """Run the limiters; the bound is the best short and the best long result of some constant limits."""
    mix = standard(job.variant)
    bound = dict(job.bound) if job.bound else _best(mix, job)
    found: dict[str, Figures] = {}
    for name in job.limiters:
        good, tally = simulate(mix, job, name)
        found[name] = {
            "good": sum(good.values()) / sum(bound.values()),
            "short": good["short"] / bound["short"],
            "long": good["long"] / bound["long"],
            "refused": ratio(total(tally.rejected), total(tally.attempts)),
        }
    return Found(found, bound)


def _best(mix: Mix, job: Job) -> dict[str, float]:
    swept = [simulate(mix, job, name)[0] for name in SWEPT]
    return {kind.name: max(1.0, *(good[kind.name] for good in swept)) for kind, _ in mix.kinds}


def run_drawn(job: Job) -> Found:
    """Run the limiters; the bound is the best of the others, in requests."""
    mix = drawn(int(job.variant))
    done = {name: sum(simulate(mix, job, name)[0].values()) for name in job.limiters}
    if job.bound:
        bound = dict(job.bound)
    else:
        names = ("gradient", "fixed", f"fixed:{mix.servers}", f"fixed:{mix.servers}:unqueued")
        bound = {
            "requests": max(done.get(name) or sum(simulate(mix, job, name)[0].values()) for name in names)
        }
    best = max(bound["requests"], *done.values(), 1.0)
    return Found({name: {"requests": good / best} for name, good in done.items()}, bound)


def summarize(rows: Rows) -> Rows:
    """Return the mean and the 10th percentile over the draws, and the worst draws."""
    limiters = list(next(iter(rows.values())))
    summary: dict[str, Figures] = {}
    for limiter in limiters:
        mean, p10, worst = spread_of([row[limiter]["requests"] for row in rows.values()])
        summary[limiter] = {"geomean": mean, "p10": p10, "worst": worst}
    order = sorted(rows, key=lambda name: rows[name][limiters[0]]["requests"])
    return {"all": summary, **{name: rows[name] for name in order[:4]}}


CASES = (
    Case(
        "mixed",
        "3 requests of 10 ms and of 5 s on 8 servers",
        tuple(_STEPS),
        run_standard,
        (
            Bar("0.5x", "good", 0.98),
            *(
                bar
                for name in ("2x", "5x", "2x from the start")
                for bar in (Bar(name, "good", 1.10), Bar(name, "long", 0.80))
            ),
        ),
        has_bound=True,
    ),
    Case(
        "mixes",
        f"3 {MIXES} random mixes of two or three kinds, over the best of all limiters",
        tuple(map(str, range(MIXES))),
        run_drawn,
        (Bar("all", "geomean", 0.95), Bar("all", "p10", 0.90)),
        summarize=summarize,
        seeds=1,
        has_bound=True,
    ),
)
