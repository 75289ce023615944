"""An LLM with and without an objective in the settings."""

from __future__ import annotations

import functools
from typing import Any

from autoglm_throttle.testing.simulated_llm import draw_lengths
from benchmarks.field_cases.call import Kind
from benchmarks.field_cases.case import Bar, Case, Figures, Found, Job, ratio
from benchmarks.field_cases.limiters import maker
from benchmarks.field_cases.llm_plant import LlmEnginePlant, traced_lengths
from benchmarks.field_cases.tally import Tally, total
from benchmarks.field_cases.world import Rates, Stream, World

CAPACITY_RPS = 6.6
SLO_S = 30.0
HAND_SET = 40
SWEPT = ("fixed:24", "fixed:32", "fixed:40", "fixed:64")

_UNSET: dict[str, Any] = {"slo_s": None}
_SET: dict[str, Any] = {"slo_s": SLO_S}
_VARIANTS: dict[str, tuple[Rates, dict[str, Any], tuple[tuple[float, float], ...]]] = {
    "unset, 0.5x": (((0, 0.5),), _UNSET, ()),
    "unset, 0.7x": (((0, 0.5), (60, 0.7)), _UNSET, ()),
    "unset, 2x": (((0, 0.5), (60, 2.0)), _UNSET, ()),
    "unset, 2x at start": (((0, 2.0),), _UNSET, ()),
    "30 s, 2x": (((0, 0.5), (60, 2.0)), _SET, ()),
    "30 s, 5x": (((0, 0.5), (60, 5.0)), _SET, ()),
    "30 s, 2x at start": (((0, 2.0),), _SET, ()),
    "30 s, 1.2x, moving": (((0, 0.5), (60, 1.2)), _SET, ((100.0, 0.6), (160.0, 1.0))),
}
"""Steps of the load, settings, and changes of speed."""


def simulate(job: Job, limiter: str) -> Tally:
    """Run a variant."""
    rates, settings, speeds = _VARIANTS[job.variant]
    draw = functools.partial(traced_lengths, job.trace) if job.trace else draw_lengths
    make = maker(limiter, fixed=HAND_SET, tuning=job.tuning, settings=settings)
    world = World(LlmEnginePlant, make, Tally(70.0, 240.0), slo_s=SLO_S)
    world.speeds(*speeds)
    steps = [(at_s, multiple * CAPACITY_RPS) for at_s, multiple in rates]
    Stream(world, Kind(slo_s=SLO_S, draw_work=draw), steps, f"llm {job.seed}")
    return world.run()


def run(job: Job) -> Found:
    """Run the limiters; the bound is the best of some constant limits with a queue."""
    bound = dict(job.bound) if job.bound else _best(job)
    found: dict[str, Figures] = {}
    for name in job.limiters:
        tally = simulate(job, name)
        found[name] = {
            "good": total(tally.good) / bound["good"],
            "high": ratio(total(tally.good, priority=0), total(tally.offered, priority=0)),
            "refused": ratio(total(tally.rejected), total(tally.attempts)),
        }
    return Found(found, bound)


def _best(job: Job) -> dict[str, float]:
    good = {name: float(total(simulate(job, name).good)) for name in SWEPT}
    best = max(good, key=lambda name: good[name])
    return {"good": max(1.0, good[best]), "limit": float(best.partition(":")[2])}


def _bars() -> tuple[Bar, ...]:
    least = dict(zip(_VARIANTS, (0.97, 0.97, 0.95, 0.90, 0.97, 0.97, 0.97, 0.95), strict=True))
    return (
        *(Bar(name, "good", value) for name, value in least.items()),
        *(Bar(name, "high", 0.95) for name in _VARIANTS),
        *(Bar(name, "refused", 0.01, at_most=True) for name in ("unset, 0.5x", "unset, 0.7x")),
    )


CASES = (Case("llm", "6 an LLM whose callers wait 30 s", tuple(_VARIANTS), run, _bars(), has_bound=True),)
