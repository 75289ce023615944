"""The sixteen scenarios as they are, begun in their overload and after silence; and random services."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.field_cases.case import Bar, Case, Figures, Found, Job, Rows, spread_of
from benchmarks.field_cases.limiters import CEILING_RPS, OURS, make_fixed
from benchmarks.loop.clients import plan
from benchmarks.loop.limiters import registry
from benchmarks.loop.limiters.limiter import Limiter, LimiterContext
from benchmarks.loop.offered_load import Load
from benchmarks.loop.plant import PlantSpec
from benchmarks.loop.run import Run
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import ALL, SCENARIOS, SIXTEEN, Scenario

SILENCE_S = 8.0
SILENT = 1e-9

PLANTS = 120
SEGMENT_S = 10.0
LOADS = (0.3, 0.6, 0.9, 1.2, 2.0, 4.0, 8.0)


def begun_in_overload(scenario: Scenario) -> Scenario:
    """Return a scenario without its calm front; ramps are turned round; one without overload is the same."""
    load = scenario.load
    if scenario.family == "ramp":
        pieces = tuple((begun, last, first) for begun, first, last in load.pieces)
        return replace(scenario, load=Load(pieces, load.duration_s))
    begun_s = next((begun for begun, first, _ in load.pieces if first > 1.0), 0.0)
    if not begun_s and len(scenario.speeds) > 1:
        begun_s = scenario.speeds[0][0]
    return _shifted(scenario, -begun_s)


def after_silence(scenario: Scenario) -> Scenario:
    """Return a scenario whose service gives no answer in the first 8 s, in which its first load arrives."""
    later = _shifted(scenario, SILENCE_S)
    resumed: tuple[tuple[float, int, float], ...] = ((SILENCE_S, ALL, 1.0),)
    # equal times run in this order: the speeds of the scenario come after the full speed
    return replace(
        later,
        speeds=((0.0, ALL, SILENT), *resumed, *later.speeds),
        warm_s=scenario.warm_s + SILENCE_S,
    )


def _shifted(scenario: Scenario, by_s: float) -> Scenario:
    """Move everything in time; the first load fills what is gained, and what is lost is cut off."""
    load = scenario.load
    pieces = [(begun + by_s, first, last) for begun, first, last in load.pieces]
    kept = [
        piece
        for piece, following in zip(pieces, [*pieces[1:], None], strict=True)
        if following is None or following[0] > 0.0
    ]
    first = kept[0]
    kept = [
        (0.0, first[1], first[1] if by_s > 0.0 else first[2]),
        *([first] if by_s > 0.0 else []),
        *kept[1:],
    ]
    return replace(
        scenario,
        load=Load(tuple(kept), load.duration_s + by_s),
        speeds=tuple((max(0.0, at_s + by_s), index, speed) for at_s, index, speed in scenario.speeds),
        taken=tuple((begun + by_s, ends + by_s, index, used) for begun, ends, index, used in scenario.taken),
    )


def random_plant(number: int) -> Scenario:
    """Draw a service and its load, as the design says; it may begin at eight times its capacity."""
    rng = random.Random(f"field plant {number}")
    batch = rng.choice((1, 2, 4, 8, 32))
    capacity = rng.uniform(20.0, 150.0)
    full_s = batch / capacity
    fixed = rng.uniform(0.05, 0.6)
    parts = [rng.gammavariate(alpha, 1.0) for alpha in (1.5, 2.0, 4.0)]
    high, mid, _ = (part / sum(parts) for part in parts)
    loads = [rng.choice(LOADS) for _ in range(6)]
    return Scenario(
        name=f"plant_{number}",
        family="plants",
        load=Load(tuple((SEGMENT_S * n, x, x) for n, x in enumerate(loads)), 6 * SEGMENT_S),
        plant=PlantSpec(batch=batch, base_s=fixed * full_s, item_s=(1.0 - fixed) * full_s / batch),
        slo_s=max(0.5, rng.uniform(5.0, 20.0) * full_s),
        mix=(high, mid, 1.0 - high - mid),
        rates_rps=(CEILING_RPS, CEILING_RPS, CEILING_RPS),
        pareto=rng.random() < 0.5,
        retries=rng.choice((0, 0, 2)),
        speeds=tuple((SEGMENT_S * n, ALL, rng.uniform(0.4, 1.0)) for n in range(6)),
        of_16=False,
    )


_VARIATIONS: dict[str, Callable[[Scenario], Scenario]] = {
    "sixteen": lambda scenario: scenario,
    "overload": begun_in_overload,
    "silence": after_silence,
    "overload_silence": lambda scenario: after_silence(begun_in_overload(scenario)),
}


def scenario_of(case: str, variant: str) -> Scenario:
    """Return the scenario of a job."""
    if case == "plants":
        return random_plant(int(variant))
    return _VARIATIONS[case](SCENARIOS[variant])


def run(job: Job) -> Found:
    """Run the oracle, unless its result was kept, and the limiters with the same requests."""
    scenario = scenario_of(job.case, job.variant)
    requests = plan(scenario, job.seed)

    def counts_of(name: str) -> RunCounts:
        return Run(scenario, requests, functools.partial(_make, name, scenario, job)).go()

    bound = dict(job.bound) if job.bound else _good(counts_of("oracle"))
    return Found({name: _relative(counts_of(name), bound) for name in job.limiters}, bound)


def _make(name: str, scenario: Scenario, job: Job, context: LimiterContext) -> Limiter:
    if name.startswith("fixed"):
        plant = scenario.plant
        return make_fixed(context, name, 2 * plant.batch * getattr(plant, "replicas", 1))
    name, tuning = ("concurrency", dict(job.tuning)) if name == OURS else (name, {})
    return registry.make(name, context, scenario, tuning)


def _good(counts: RunCounts) -> dict[str, float]:
    return {"good": float(sum(counts.good)), "high": float(counts.good[0])}


def _relative(counts: RunCounts, bound: dict[str, float]) -> Figures:
    return {
        "good": sum(counts.good) / max(1.0, bound["good"]),
        "high": counts.good[0] / max(1.0, bound["high"]),
        "refused": sum(counts.rejected) / max(1, sum(counts.offered)),
        "kills": float(counts.kills),
    }


def summarize(rows: Rows) -> Rows:
    """Return the means and the worst over all scenarios, and the worst ones by name."""
    limiters = list(next(iter(rows.values())))
    summary: dict[str, Figures] = {}
    for limiter in limiters:
        good = spread_of([row[limiter]["good"] for row in rows.values()])
        high = spread_of([row[limiter]["high"] for row in rows.values()])
        summary[limiter] = {
            "good geomean": good[0],
            "good p10": good[1],
            "good worst": good[2],
            "high geomean": high[0],
            "high p10": high[1],
            "high worst": high[2],
        }
    worst = sorted(
        rows, key=lambda name: min(rows[name][limiters[0]]["good"], rows[name][limiters[0]]["high"])
    )
    return {"all": summary, **{name: rows[name] for name in worst[:4]}}


_NAMES = tuple(scenario.name for scenario in SIXTEEN)
_BEGUN = (Bar("all", "good geomean", 0.98), Bar("all", "good worst", 0.94))

CASES = (
    Case(
        "sixteen",
        "the 16 scenarios as they are",
        _NAMES,
        run,
        (Bar("all", "good geomean", 0.99), Bar("all", "good worst", 0.96), Bar("all", "high worst", 0.955)),
        summarize=summarize,
        has_bound=True,
    ),
    Case(
        "overload", "the 16 begun in their overload", _NAMES, run, _BEGUN, summarize=summarize, has_bound=True
    ),
    Case("silence", "the 16 after 8 s of silence", _NAMES, run, _BEGUN, summarize=summarize, has_bound=True),
    Case(
        "overload_silence",
        "the 16 begun in their overload, after 8 s of silence",
        _NAMES,
        run,
        (),
        summarize=summarize,
        has_bound=True,
    ),
    Case(
        "plants",
        f"{PLANTS} random services that may begin at 8x",
        tuple(map(str, range(PLANTS))),
        run,
        (
            Bar("all", "good geomean", 0.975),
            Bar("all", "good p10", 0.94),
            Bar("all", "good worst", 0.74),
            Bar("all", "high p10", 0.88),
        ),
        summarize=summarize,
        seeds=1,
        has_bound=True,
    ),
)
