"""The simulated LLM engine of the package, whose callers want their first token soon."""

from __future__ import annotations

from dataclasses import replace

from autoglm_throttle.testing.simulated_llm import LlmEngineSpec, draw_lengths
from benchmarks.field_cases.call import Kind
from benchmarks.field_cases.case import Bar, Case, Figures, Found, Job, ratio
from benchmarks.field_cases.limiters import WAIT_SHARE, FieldThrottle, maker
from benchmarks.field_cases.llm_plant import LlmEnginePlant
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import Stream, World
from benchmarks.loop.plant import Listener
from benchmarks.loop.scheduler import EventScheduler

CAPACITY_RPS = 6.8
"""Requests/s at which the engine is full, with 128 sequences."""

SLO_S = 30.0
"""Whole answer."""

FIRST_SLO_S = 2.0
"""First token. Half of it may be spent in the queue of a limit set by hand, the rest is for the prompt."""

LIMITS = (32, 48, 64, 80, 96, 128)
SMALL_CACHE_LIMITS = (16, 24, 28, 32, 36, 40)
SMALL_CACHE = replace(LlmEngineSpec(), num_gpu_blocks=3125)
"""An eighth of the cache: 50,000 tokens, which about 35 requests fill."""

LOADS = {"2x": 2.0, "5x": 5.0, "2x, small cache": 2.0, "5x, small cache": 5.0}
SAMPLED_S = 1.0
"""Seconds between two samples of the engine, as by default."""


def simulate(job: Job, limiter: str) -> Tally:
    """Run a variant."""
    spec = SMALL_CACHE if "small cache" in job.variant else LlmEngineSpec()
    settings = {"slo_s": SLO_S, "slo_ttft_s": FIRST_SLO_S}
    make = maker(limiter, fixed=LIMITS[0], tuning=job.tuning, settings=settings)
    plants: list[LlmEnginePlant] = []

    def make_plant(scheduler: EventScheduler, listener: Listener) -> LlmEnginePlant:
        plants.append(LlmEnginePlant(scheduler, listener, spec))
        return plants[0]

    # Limits set by hand wait for WAIT_SHARE of the world's objective.
    world = World(make_plant, make, Tally(70.0, 400.0), slo_s=FIRST_SLO_S / 2 / WAIT_SHARE)
    if isinstance(world.limiters[0], FieldThrottle) and spec is SMALL_CACHE:
        world.limiters[0].watch(plants[0].read, SAMPLED_S)
    kind = Kind(slo_s=SLO_S, first_slo_s=FIRST_SLO_S, draw_work=draw_lengths)
    rates = [(0.0, 0.5 * CAPACITY_RPS), (60.0, LOADS[job.variant] * CAPACITY_RPS)]
    Stream(world, kind, rates, f"engine {job.seed}")
    return world.run(SLO_S)


def run(job: Job) -> Found:
    """Run the limiters; the bound is the best of some constant limits with a queue."""
    bound = dict(job.bound) if job.bound else _best(job)
    found: dict[str, Figures] = {}
    for name in job.limiters:
        tally = simulate(job, f"fixed:{bound['limit']:g}" if name == "fixed" else name)
        high = total(tally.good, priority=0)
        found[name] = {
            "good": total(tally.good) / bound["good"],
            "high": high / bound["high"],
            "high served": ratio(high, total(tally.offered, priority=0)),
            "refused": ratio(total(tally.rejected), total(tally.attempts)),
        }
    return Found(found, bound)


def _best(job: Job) -> dict[str, float]:
    limits = SMALL_CACHE_LIMITS if "small cache" in job.variant else LIMITS
    runs = {name: simulate(job, name).good for name in (f"fixed:{limit}" for limit in limits)}
    best = max(runs, key=lambda name: total(runs[name]))
    return {
        "good": max(1.0, total(runs[best])),
        "high": max(1.0, total(runs[best], priority=0)),
        "limit": float(best.partition(":")[2]),
    }


_BARS = tuple(Bar(name, figure, 0.97) for name in LOADS for figure in ("good", "high"))

CASES = (
    Case(
        "engine",
        "9 an LLM engine, first token within 2 s and all within 30 s",
        tuple(LOADS),
        run,
        _BARS,
        has_bound=True,
    ),
)
