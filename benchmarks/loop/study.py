"""Many runs on all cores: one task for each scenario and seed, so that all limiters get the same requests."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.loop import measures
from benchmarks.loop.clients import plan
from benchmarks.loop.limiters import registry
from benchmarks.loop.llm_plant import LlmPlantSpec
from benchmarks.loop.measures import Figures
from benchmarks.loop.run import Run
from benchmarks.loop.run_counts import RunCounts
from benchmarks.loop.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Task:
    """All limiters with the requests of one seed.

    ``limiters`` holds the title of a row, the name of its limiter, and the settings of it.
    """

    scenario: Scenario
    seed: int
    limiters: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...]

    @property
    def weight(self) -> float:
        """Estimate the cost of the task, for scheduling."""
        scenario = self.scenario
        return scenario.load.peak * scenario.plant.capacity_rps * scenario.duration_s


@dataclass(frozen=True, slots=True)
class Curve:
    """Counts of one run over time, for the charts."""

    offered: list[int]
    good: list[int]
    bin_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """Figures and curves of one task."""

    scenario: str
    seed: int
    figures: dict[str, Figures]
    curves: dict[str, Curve]


def plain(names: Sequence[str]) -> tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...]:
    """Return limiters under their own names, with the default settings."""
    return tuple((name, name, ()) for name in names)


def work(task: Task) -> Result:
    """Run all limiters of a task."""
    scenario = task.scenario
    requests = plan(scenario, task.seed)
    runs: dict[str, RunCounts] = {}
    if not isinstance(scenario.plant, LlmPlantSpec):
        runs["oracle"] = Run(
            scenario, requests, functools.partial(_make_limiter, "oracle", scenario, {})
        ).go()
    best = measures.possible(scenario, requests, runs.get("oracle"))
    for title, name, tuning in task.limiters:
        if name != "oracle":
            make = functools.partial(_make_limiter, name, scenario, dict(tuning))
            runs[title] = Run(scenario, requests, make).go()
    return Result(
        scenario.name,
        task.seed,
        {title: measures.figures(scenario, counts, best) for title, counts in runs.items()},
        {
            title: Curve(counts.offered_by_bin, counts.good_by_bin, counts.bin_s)
            for title, counts in runs.items()
        },
    )


def run(tasks: Sequence[Task]) -> list[Result]:
    """Run tasks on all cores, the longest first; the results are in the order of the tasks."""
    order = sorted(range(len(tasks)), key=lambda index: -tasks[index].weight)
    results: list[Result | None] = [None] * len(tasks)
    workers = min(len(tasks), os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(workers, _quiet) as pool:
        for index, result in zip(order, pool.imap(work, [tasks[i] for i in order]), strict=True):
            results[index] = result
    return [result for result in results if result is not None]


def _quiet() -> None:
    """Silence the logs of the package in a worker process."""
    logging.getLogger("autoglm_throttle").setLevel(logging.CRITICAL)


def medians(results: Sequence[Result]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Map scenario -> limiter -> figure -> median over the seeds."""
    rows: dict[str, dict[str, list[Figures]]] = {}
    for result in results:
        for limiter, figures in result.figures.items():
            rows.setdefault(result.scenario, {}).setdefault(limiter, []).append(figures)
    return {
        scenario: {limiter: measures.median(seen) for limiter, seen in by_limiter.items()}
        for scenario, by_limiter in rows.items()
    }


def _make_limiter(name: str, scenario: Scenario, tuning: Mapping[str, Any], context: Any) -> Any:
    return registry.make(name, context, scenario, tuning)
