"""Compares two reports side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypedDict

from autoglm_throttle.traffic.report.formatting import NO_DATA, printable, quantity
from autoglm_throttle.traffic.report.schema import Document, TallyDocument
from autoglm_throttle.traffic.report.text_report import table

Unit = Literal["s", "ratio", "rps"]

METRICS: Mapping[str, tuple[Unit, Callable[[TallyDocument], float | None]]] = {
    "answers": ("rps", lambda tally: tally["rps"]),
    "done": ("ratio", lambda tally: tally["done_ratio"]),
    "goodput": ("ratio", lambda tally: tally["goodput"]["ratio"]),
    "limited": ("ratio", lambda tally: tally["limited_ratio"]),
    "shed": ("ratio", lambda tally: tally["shed_ratio"]),
    "errors": ("ratio", lambda tally: tally["error_ratio"]),
    "mean": ("s", lambda tally: tally["response"]["mean_s"]),
    "p50": ("s", lambda tally: tally["response"]["p50_s"]),
    "p95": ("s", lambda tally: tally["response"]["p95_s"]),
    "p99": ("s", lambda tally: tally["response"]["p99_s"]),
    "service p99": ("s", lambda tally: tally["service"]["p99_s"]),
}
"""Compared numbers: unit, and the function that reads it from a tally."""

LOAD: tuple[Literal["shape", "arrivals", "seed", "mix", "clients", "requests", "loop", "limits_s"], ...] = (
    "shape",
    "arrivals",
    "seed",
    "mix",
    "clients",
    "requests",
    "loop",
    "limits_s",
)
"""Keys of `load` that must be equal for two runs to have the same load and the same measure of goodput."""


class ComparisonRow(TypedDict):
    """One number in both reports."""

    segment: str
    """``all`` or a segment."""
    priority: str
    """``all`` or a priority."""
    metric: str
    unit: Unit
    a: float | None
    b: float | None
    ratio: float | None
    """b by a; None where one is missing or a is 0."""


class Comparison(TypedDict):
    """Two reports side by side."""

    titles: list[str]
    caveats: list[str]
    """Reasons why the numbers may not be comparable; empty if they are."""
    rows: list[ComparisonRow]


def comparison(a: Document, b: Document) -> Comparison:
    """Compare all common numbers: in total, by priority and, for equal shapes, by segment."""
    return {
        "titles": [a["title"], b["title"]],
        "caveats": _caveats(a, b),
        "rows": [
            _comparison_row(segment, priority, metric, mine, theirs)
            for segment, priority, mine, theirs in _pairs(a, b)
            for metric in METRICS
        ],
    }


def compare(a: Document, b: Document) -> list[str]:
    """Format two reports side by side for the terminal; metrics that are zero in both are left out."""
    result = comparison(a, b)
    rows = [("segment", "priority", "metric", "A", "B", "B/A")]
    rows += [
        (
            row["segment"],
            row["priority"],
            row["metric"],
            quantity(row["a"], row["unit"]),
            quantity(row["b"], row["unit"]),
            NO_DATA if row["ratio"] is None else f"{row['ratio']:.2f}",
        )
        for row in result["rows"]
        if row["a"] or row["b"]
    ]
    caveats = [f"note: {caveat}" for caveat in result["caveats"]]
    output = [
        f"A: {result['titles'][0]}",
        f"B: {result['titles'][1]}",
        *caveats,
        "",
        *table(rows, text_columns=3),
    ]
    return [printable(line) for line in output]


def _caveats(a: Document, b: Document) -> list[str]:
    caveats = [
        f"not the same {part.removesuffix('_s')}: {a['load'][part]} and {b['load'][part]}"
        for part in LOAD
        if a["load"][part] != b["load"][part]
    ]
    for name, document in (("A", a), ("B", b)):
        verdict = document["verdict"]
        caveats += [f"{name} is not valid: {caveat}" for caveat in verdict["caveats"]]
        if verdict["aborted"]:
            caveats.append(f"{name} was stopped before its end")
    return caveats


def _pairs(a: Document, b: Document) -> Iterator[tuple[str, str, TallyDocument, TallyDocument]]:
    yield "all", "all", a["totals"], b["totals"]
    for label in (name for name in a["priorities"] if name in b["priorities"]):
        yield "all", label, a["priorities"][label], b["priorities"][label]
    names = [segment["name"] for segment in a["segments"]]
    if len(names) > 1 and names == [segment["name"] for segment in b["segments"]]:
        for number, (mine, theirs) in enumerate(zip(a["segments"], b["segments"], strict=True), 1):
            yield f"{number} ({mine['name']})", "all", mine["tally"], theirs["tally"]


def _comparison_row(
    segment: str, priority: str, metric: str, mine: TallyDocument, theirs: TallyDocument
) -> ComparisonRow:
    unit, measure = METRICS[metric]
    a, b = measure(mine), measure(theirs)
    ratio = None if a is None or b is None or not a else b / a
    return {
        "segment": segment,
        "priority": priority,
        "metric": metric,
        "unit": unit,
        "a": a,
        "b": b,
        "ratio": ratio,
    }
