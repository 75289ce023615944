"""Many runs, on all cores: each scenario and seed in one task, so that all doors meet the same requests."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.loop import measures
from benchmarks.loop.books import Books
from benchmarks.loop.clients import plan
from benchmarks.loop.doors import doors
from benchmarks.loop.llm_plant import LlmPlantSpec
from benchmarks.loop.measures import Figures
from benchmarks.loop.run import Run
from benchmarks.loop.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Task:
    """All doors before the requests of one seed.

    ``doors`` maps the name that a row will have to the door's own name and the settings it gets.
    """

    scenario: Scenario
    seed: int
    doors: tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...]

    @property
    def weight(self) -> float:
        """About how long it takes."""
        scenario = self.scenario
        return scenario.load.peak * scenario.plant.capacity_rps * scenario.duration_s


@dataclass(frozen=True, slots=True)
class Course:
    """What came of one run, over time: for the plots."""

    offered: list[int]
    good: list[int]
    bin_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one task."""

    scenario: str
    seed: int
    figures: dict[str, Figures]
    courses: dict[str, Course]


def plain(names: Sequence[str]) -> tuple[tuple[str, str, tuple[tuple[str, Any], ...]], ...]:
    """Doors under their own names, with the default settings."""
    return tuple((name, name, ()) for name in names)


def work(task: Task) -> Result:
    """Run all doors of a task."""
    scenario = task.scenario
    requests = plan(scenario, task.seed)
    runs: dict[str, Books] = {}
    if not isinstance(scenario.plant, LlmPlantSpec):
        runs["oracle"] = Run(scenario, requests, functools.partial(_put_up, "oracle", scenario, {})).go()
    best = measures.possible(scenario, requests, runs.get("oracle"))
    for title, name, tuning in task.doors:
        if name != "oracle":
            make = functools.partial(_put_up, name, scenario, dict(tuning))
            runs[title] = Run(scenario, requests, make).go()
    return Result(
        scenario.name,
        task.seed,
        {title: measures.figures(scenario, books, best) for title, books in runs.items()},
        {
            title: Course(books.offered_by_bin, books.good_by_bin, books.bin_s)
            for title, books in runs.items()
        },
    )


def run(tasks: Sequence[Task]) -> list[Result]:
    """Work through tasks on all cores, the longest first; the results stand in the order of the tasks."""
    order = sorted(range(len(tasks)), key=lambda index: -tasks[index].weight)
    results: list[Result | None] = [None] * len(tasks)
    workers = min(len(tasks), os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(workers, _quiet) as pool:
        for index, result in zip(order, pool.imap(work, [tasks[i] for i in order]), strict=True):
            results[index] = result
    return [result for result in results if result is not None]


def _quiet() -> None:
    """In a worker: what the library logs does not mix with the table."""
    logging.getLogger("autoglm_throttle").setLevel(logging.CRITICAL)


def medians(results: Sequence[Result]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Scenario -> door -> figure -> median over the seeds."""
    rows: dict[str, dict[str, list[Figures]]] = {}
    for result in results:
        for door, figures in result.figures.items():
            rows.setdefault(result.scenario, {}).setdefault(door, []).append(figures)
    return {
        scenario: {door: measures.median(seen) for door, seen in by_door.items()}
        for scenario, by_door in rows.items()
    }


def _put_up(name: str, scenario: Scenario, tuning: Mapping[str, Any], site: Any) -> Any:
    return doors.make(name, site, scenario, tuning)
