"""A case: its variants, the run of one, its bars, and the medians over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """One variant with one seed, for some limiters.

    Args:
        case: name of the case.
        variant: name of the variant.
        seed: of all draws.
        limiters: names of limiters.
        tuning: settings of the throttle.
        bound: figures of the best possible result that were kept; None: they are computed.
        trace: path of a trace for the lengths of LLM requests; None: they are drawn.
    """

    case: str
    variant: str
    seed: int
    limiters: tuple[str, ...]
    tuning: tuple[tuple[str, Any], ...] = ()
    bound: Mapping[str, float] | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Figures of one job by limiter, with those of the bound, if the case has one."""

    by_limiter: dict[str, Figures]
    bound: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for one figure of one variant."""

    variant: str
    figure: str
    value: float
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        """Whether a value, rounded as in the table, is within the bar."""
        shown = round(value, 3)
        return shown <= self.value if self.at_most else shown >= self.value

    @property
    def text(self) -> str:
        """Return the bar as text."""
        return f"{'<=' if self.at_most else '>='} {self.value:g}"


Rows = dict[str, dict[str, Figures]]
"""Variant -> limiter -> figure."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table in the design.

    Args:
        name: for the command line.
        title: what happens.
        variants: names of the variants.
        run: runs one job.
        bars: what must hold.
        limiters: columns.
        summarize: makes further rows from the medians of all variants; the others are not shown then.
        seeds: number of seeds at most; 1 where each variant is a draw.
    """

    name: str
    title: str
    variants: tuple[str, ...]
    run: Callable[[Job], Found]
    bars: tuple[Bar, ...] = ()
    limiters: tuple[str, ...] = ("ours", "gradient", "fixed")
    summarize: Callable[[Rows], Rows] | None = None
    seeds: int = 1 << 30
    has_bound: bool = field(default=False)


def each(simulate: Callable[[Job, str], Figures]) -> Callable[[Job], Found]:
    """Return the run of a case without a bound of its own: each limiter by itself."""
    return _Each(simulate)


@dataclass(frozen=True, slots=True)
class _Each:
    simulate: Callable[[Job, str], Figures]

    def __call__(self, job: Job) -> Found:
        return Found({name: self.simulate(job, name) for name in job.limiters})


def medians(found: Sequence[tuple[Job, Found]]) -> Rows:
    """Return the medians over the seeds."""
    seen: dict[str, dict[str, list[Figures]]] = {}
    for job, one in found:
        for limiter, figures in one.by_limiter.items():
            seen.setdefault(job.variant, {}).setdefault(limiter, []).append(figures)
    return {
        variant: {
            limiter: {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}
            for limiter, rows in by_limiter.items()
        }
        for variant, by_limiter in seen.items()
    }


def spread_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean, the 10th percentile and the least value."""
    ordered = sorted(max(value, 1e-3) for value in values)
    return statistics.geometric_mean(ordered), ordered[int(0.1 * (len(ordered) - 1))], ordered[0]


def ratio(part: float, whole: float) -> float:
    """Return a share; 0 of nothing."""
    return part / whole if whole else 0.0
