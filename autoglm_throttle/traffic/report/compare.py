"""Compares two reports side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from autoglm_throttle.traffic.report.objectives import metric
from autoglm_throttle.traffic.report.schema import Document, TallyDocument
from autoglm_throttle.traffic.report.text_report import NO_DATA, printable, quantity, table

METRICS = {  # Compared numbers, and their names in objectives
    "answers": "rps",
    **{name: name for name in ("done", "goodput", "limited", "shed")},
    "errors": "error",
    **{name: name for name in ("mean", "p50", "p95", "p99")},
    "service p99": "service.p99",
}

LoadKey = Literal["shape", "arrivals", "seed", "mix", "clients", "requests", "loop", "limits_s"]
# Parts of `load` that must be equal for two runs to have the same load and the same measure of goodput.
LOAD: tuple[LoadKey, ...] = get_args(LoadKey)


def comparison(a: Document, b: Document) -> dict[str, Any]:
    """Compare all common numbers: in total, by priority and, for equal shapes, by segment.

    Returns:
        Ready for JSON: ``titles``, ``caveats`` (reasons why the numbers may not be comparable) and ``rows``
        with the numbers ``a`` and ``b``, and ``ratio``, b by a; None where one is missing or a is 0.
    """
    return {
        "titles": [a["title"], b["title"]],
        "caveats": _caveats(a, b),
        "rows": list(_comparison_rows(a, b)),
    }


def compare(a: Document, b: Document) -> list[str]:
    """Format two reports side by side for the terminal; metrics that are zero in both are left out."""
    result = comparison(a, b)
    rows = [("segment", "priority", "metric", "A", "B", "B/A")]
    for row in result["rows"]:
        if row["a"] or row["b"]:
            both = quantity(row["a"], row["unit"]), quantity(row["b"], row["unit"])
            ratio = NO_DATA if row["ratio"] is None else f"{row['ratio']:.2f}"
            rows.append((row["segment"], row["priority"], row["metric"], *both, ratio))
    titles = [f"{name}: {title}" for name, title in zip("AB", result["titles"], strict=True)]
    caveats = [f"note: {caveat}" for caveat in result["caveats"]]
    return [printable(line) for line in (*titles, *caveats, "", *table(rows, text_columns=3))]


def _caveats(a: Document, b: Document) -> list[str]:
    caveats = [
        f"not the same {part.removesuffix('_s')}: {a['load'][part]} and {b['load'][part]}"
        for part in LOAD
        if a["load"][part] != b["load"][part]
    ]
    for name, verdict in (("A", a["verdict"]), ("B", b["verdict"])):
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


def _comparison_rows(a: Document, b: Document) -> Iterator[dict[str, Any]]:
    for segment, priority, mine, theirs in _pairs(a, b):
        for name, objective in METRICS.items():
            unit, measure = metric(objective)
            one, other = measure(mine), measure(theirs)
            yield {
                "segment": segment,
                "priority": priority,
                "metric": name,
                "unit": unit,
                "a": one,
                "b": other,
                "ratio": None if one is None or other is None or not one else other / one,
            }
