"""The medians as text, and their bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.loop.scenarios import SCENARIOS, SIXTEEN

Row = Mapping[str, float | None]
Medians = Mapping[str, Mapping[str, Row]]
"""Scenario -> limiter -> figure."""

CONSTANT = ("step_2x", "step_5x", "step_10x")
QUICK = ("step_2x", "step_5x")
CALM = ("steady_0.5x", "steady_0.5x_batchy", "fake_busy_0.3x")
RELIEVED = ("spike_10x_10s", "retry_2x_20s", "cap_half_0.9x", "stall_8s_0.5x")

_Rule = tuple[str, str, float, tuple[str, ...]]

AT_LEAST: tuple[_Rule, ...] = (
    ("goodput / oracle", "goodput", 0.98, CONSTANT),
    ("goodput / oracle", "goodput", 0.97, ("slow_2x",)),
    ("goodput / possible", "goodput", 0.95, ("llm_2x", "llm_slo_unset_0.7x")),
)
"""Title, figure, bar and scenarios."""

AT_MOST: tuple[_Rule, ...] = (
    ("high p99 / oracle", "high_p99_over", 2.2, QUICK),
    ("high p99 in s", "high_p99_s", 0.8, QUICK),
    ("false refusals", "refused", 0.0, CALM),
    ("false refusals", "refused", 0.02, ("bursts_0.5x", "bursts_0.2x")),
    ("reversals", "reversals", 0.0, CONSTANT),
    ("reversals", "reversals", 1.0, ("spike_10x_10s",)),
    ("reaction in s", "react_s", 1.0, CONSTANT),
    ("recovery in s", "recover_s", 5.0, RELIEVED),
)
"""Upper bars in the same form. With a latency budget of 0.2, not 0.25, those of high were 2.1 and 0.7 s."""

DETAILED = ("concurrency", "adaptive")
"""Limiters with a table of further figures."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and its bar."""

    name: str
    value: float
    wanted: str
    met: bool


def mean_of_16(medians: Medians, limiter: str) -> float:
    """Return the geometric mean of goodput over those of the 16 that were run; NaN if none was."""
    values = [row["goodput"] for _, row in _rows(medians, limiter) if row["goodput"]]
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def worst_of_16(medians: Medians, limiter: str, figure: str, without: Sequence[str] = ()) -> float:
    """Return the smallest value of a figure over those of the 16 that were run."""
    found = [row[figure] for name, row in _rows(medians, limiter) if name not in without]
    return min((value for value in found if value is not None), default=math.nan)


def bars(medians: Medians, limiter: str, slack: float = 0.0) -> list[Bar]:
    """Compute the bars of a limiter whose scenarios were run; ``slack`` lowers those of goodput."""
    without = worst_of_16(medians, limiter, "high", without=("stall_8s_0.5x",))
    found = [
        _least("goodput / oracle, geometric mean", mean_of_16(medians, limiter), 0.985 - slack),
        _least("goodput / oracle, worst", worst_of_16(medians, limiter, "goodput"), 0.95 - slack),
        _least("high / oracle, worst", worst_of_16(medians, limiter, "high"), 0.95 - slack),
        _least("high / oracle, worst but for the hang", without, 0.97 - slack),
        _most("OOM kills, all scenarios", _kills(medians, limiter), 0.0),
    ]
    for title, figure, bar, scenarios in AT_LEAST:
        found += [
            _least(f"{title}, {name}", _figure(medians, name, limiter, figure), bar) for name in scenarios
        ]
    for title, figure, bar, scenarios in AT_MOST:
        found += [
            _most(f"{title}, {name}", _figure(medians, name, limiter, figure), bar) for name in scenarios
        ]
    return [bar for bar in found if not math.isnan(bar.value)]


def _figure(medians: Medians, scenario: str, limiter: str, name: str) -> float:
    value = medians.get(scenario, {}).get(limiter, {}).get(name)
    return math.nan if value is None else value


def _kills(medians: Medians, limiter: str) -> float:
    return sum(
        by_limiter[limiter]["kills"] or 0.0 for by_limiter in medians.values() if limiter in by_limiter
    )


def _least(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, f">= {bar:g}", value >= bar)


def _most(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, f"<= {bar:g}", value <= bar)


def text(medians: Medians, limiters: Sequence[str]) -> str:
    """Render three tables: goodput, the high class, and details of the policies with a concurrency limit."""
    parts = [
        _grid(medians, limiters, "goodput", "goodput / oracle"),
        _grid(medians, limiters, "high", "high / oracle"),
    ]
    parts += [_beside(medians, limiter) for limiter in DETAILED if limiter in limiters]
    return "\n".join(parts)


def _grid(medians: Medians, limiters: Sequence[str], figure: str, title: str) -> str:
    lines = [f"{title:22}" + "".join(f"{limiter:>12}" for limiter in limiters)]
    for scenario, by_limiter in medians.items():
        cells = (by_limiter.get(limiter, {}).get(figure) for limiter in limiters)
        lines.append(f"{scenario:22}" + "".join(f"{_number(cell):>12}" for cell in cells))
    if any(scenario.name in medians for scenario in SIXTEEN):
        summaries: tuple[tuple[str, Callable[[str], float]], ...] = (
            ("geometric mean of 16", lambda limiter: mean_of_16(medians, limiter)),
            ("worst of 16", lambda limiter: worst_of_16(medians, limiter, figure)),
        )
        for name, summary in summaries[figure != "goodput" :]:
            lines.append(f"{name:22}" + "".join(f"{_number(summary(limiter)):>12}" for limiter in limiters))
    return "\n".join(lines) + "\n"


def _beside(medians: Medians, limiter: str) -> str:
    columns = {
        "mid": "mid",
        "low": "low",
        "high_p99_s": "p99 s",
        "high_p99_over": "/oracle",
        "refused": "refused",
        "react_s": "react s",
        "recover_s": "recover",
        "reversals": "turns",
        "kills": "kills",
    }
    lines = [f"{limiter:22}" + "".join(f"{title:>9}" for title in columns.values())]
    for scenario, by_limiter in medians.items():
        row = by_limiter.get(limiter, {})
        lines.append(f"{scenario:22}" + "".join(f"{_number(row.get(name)):>9}" for name in columns))
    return "\n".join(lines) + "\n"


def verdicts(found: Sequence[Bar]) -> str:
    """Render one line for each bar, and the number of bars met."""
    lines = [
        f"{'met' if bar.met else 'MISSED':7}{bar.name:42}{bar.value:9.4g}  {bar.wanted}" for bar in found
    ]
    return "\n".join([*lines, f"{sum(bar.met for bar in found)} of {len(found)} bars met"])


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:.3f}" if isinstance(value, float) and value != int(value) else f"{value:g}"


def _rows(medians: Medians, limiter: str) -> Iterator[tuple[str, Row]]:
    for scenario, by_limiter in medians.items():
        if limiter in by_limiter and (scenario not in SCENARIOS or SCENARIOS[scenario].of_16):
            yield scenario, by_limiter[limiter]
