"""Evaluation of the rounds: each row at each level against its control, and the bars of this project."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.headline_rows import control
from benchmarks.headline_rows.cases import BURST_S, OURS, RATES_RPS, RAW_OURS, ROWS, Case, Scale
from benchmarks.shared.bars import Bar

Round = Mapping[str, Mapping[str, Any]]
"""The figures of each case, by its key."""

TOP = "5000/s"

BEYOND = "10000/s"
"""A level shown if the control passes it; it has no bars."""

FRACTION = 0.01
"""Tolerance of a count that is known beforehand, in addition to a burst."""

REJECTED = 0.03
"""Most rejections of a pass, as a share of the planned, above those that the load asks for."""

KEPT = 0.97
"""Smallest ratio of our responses to those of the control."""

UNDER_PRESSURE_RPS = 3800.0
"""Least responses per second of a GPU with a capacity of 4000/s."""


def points(rounds: Sequence[Round], level: str, scale: Scale) -> list[dict[str, control.Point]]:
    """Convert the rounds for the control rule."""
    return [
        {
            case.key: _point(one[case.key]["levels"][level], case.needed_rejections(level) + REJECTED)
            for case in scale.cases
            if case.key in one
        }
        for one in rounds
    ]


def _point(figures: Mapping[str, Any], most: float) -> control.Point:
    too_many = figures["limited"] + figures["shed"] > most * figures["planned"]
    return control.Point(figures["done_ratio"], figures["p99_s"], figures["error_ratio"], too_many)


def rows(rounds: Sequence[Round], scale: Scale) -> list[dict[str, Any]]:
    """Build a record for each row and level: medians over the counted rounds, the outcome, the ratios."""
    return [
        {"case": case.key, "level": level, **_row(rounds, case, points(rounds, level, scale), level)}
        for level in scale.names
        for case in scale.cases
    ]


def _row(rounds: Sequence[Round], case: Case, seen: Sequence[control.Round], level: str) -> dict[str, Any]:
    beside = case.control
    evaluated = control.evaluate(seen, case.key, beside)
    counted = [one for one, point in zip(rounds, seen, strict=True) if control.is_counted(point, beside)]
    ratios = {
        "done_of_control": control.done_ratio(seen, case.key, beside),
        "p99_of_control": control.p99_ratio(seen, case.key, beside),
    }
    return {
        "outcome": evaluated.outcome,
        "judgement": evaluated.text,
        "counted": evaluated.counted,
        **{name: None if spread is None else asdict(spread) for name, spread in ratios.items()},
        **middle([one[case.key]["levels"][level] for one in counted or rounds]),
        "server_cpu": statistics.median(one[case.key]["server_cpu"] for one in counted or rounds),
    }


def middle(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the rounds that have it."""
    merged: dict[str, Any] = {}
    for name, first in several[0].items():
        values = [one[name] for one in several]
        if isinstance(first, Mapping):
            merged[name] = middle(values)
        else:
            known = [value for value in values if value is not None]
            merged[name] = statistics.median(known) if known else None
    return merged


def status(found: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit status: 1 if ours failed, 3 if the machine was too slow, else 0."""
    outcomes = {row["outcome"] for row in found if _is_evaluated(row, OURS)}
    if "fail" in outcomes:
        return control.STATUS["fail"]
    # A machine that is too slow for FastAPI alone can still show ours in front of the raw app.
    outcomes = {row["outcome"] for row in found if _is_evaluated(row, RAW_OURS)}
    return control.STATUS["inconclusive" if "inconclusive" in outcomes else "pass"]


def _is_evaluated(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    variant, _, name = row["case"].partition("/")
    return variant != "nominal" and name in names and row["level"] != BEYOND


def bars(found: Sequence[Mapping[str, Any]]) -> Iterator[Bar]:
    """Compute the bars; a miss with too few counted rounds is inconclusive."""
    by = {(row["case"], row["level"]): row for row in found}
    for (case, level), row in by.items():
        variant, _, name = case.partition("/")
        if name in OURS and variant == "nominal":
            yield from _nominal(row)
        elif name in OURS and level != BEYOND:
            yield from _ours(row)
    if ("pressure/bare", TOP) in by:
        text = f"pressure at {TOP}, the service alone collapses: p99 in ms"
        value = _ms(by["pressure/bare", TOP]["p99_s"])
        yield Bar(text, value, 1e3 * control.P99_S, at_most=False, calm=_calm(by["pressure/bare", TOP]))


def _ours(row: Mapping[str, Any]) -> Iterator[Bar]:
    variant, _, name = row["case"].partition("/")
    calm, level = _calm(row), row["level"]
    where = f"{variant} at {level}, {ROWS[name]}"
    under_pressure = variant == "pressure" and level == TOP
    yield Bar(f"{where}: p99 ms", _ms(row["p99_s"]), 1e3 * control.P99_S, calm=calm)
    yield Bar(f"{where}: errors", row["errors"], 0, calm=calm)
    yield Bar(f"{where}: answered", row["done_ratio"] or 0.0, control.DONE, at_most=False, calm=calm)
    if level == TOP:
        kept = row["done_of_control"]["median"] if row["done_of_control"] else math.nan
        yield Bar(f"{where}: done of control", kept, KEPT, at_most=False, calm=calm)
    if under_pressure:
        yield Bar(f"{where}: served/s", row["served_rps"], UNDER_PRESSURE_RPS, at_most=False, calm=calm)
    rejected = row["priorities"]["high"] if under_pressure else row
    subject = "high refused" if under_pressure else "refused"
    yield Bar(f"{where}: {subject}", rejected["limited"] + rejected["shed"], 0, calm=calm)


def _nominal(row: Mapping[str, Any]) -> Iterator[Bar]:
    """Compute the expected rejections: all requests of a second above the known rate."""
    name, level = row["case"].partition("/")[2], row["level"]
    for priority, rate_rps in RATES_RPS.items():
        counts = row["priorities"][priority]
        seconds = row["planned"] / float(level.removesuffix("/s"))
        wanted = max(0.0, counts["planned"] - rate_rps * seconds)
        off = abs(counts["limited"] + counts["shed"] - wanted)
        bound = FRACTION * counts["planned"] + rate_rps * BURST_S if wanted else 0.0
        text = f"nominal at {level}, {ROWS[name]}: {priority} refused, off by"
        yield Bar(text, off, bound, calm=_calm(row))


def _calm(row: Mapping[str, Any]) -> bool:
    return bool(row["outcome"] != "inconclusive")


def _ms(time_s: float | None) -> float:
    return math.nan if time_s is None else 1e3 * time_s
