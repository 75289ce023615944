"""Compares the results of the same requests in a recording and in its replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from autoglm_throttle.traffic.report.page import units
from autoglm_throttle.traffic.report.page.markup import Markup, tag
from autoglm_throttle.traffic.report.page.tables import Table, shown
from autoglm_throttle.traffic.report.schema import Document

SIDES = ("recorded", "replayed")


def section(document: Document) -> Iterator[Markup]:
    """Render the comparison; empty if the load was not recorded, or its answers were not."""
    comparison = cast("Mapping[str, Any] | None", document.get("replay"))
    if comparison is None:
        return
    yield tag("h2", "Recorded and replayed")
    differ, changed = comparison["differ"], comparison["changed"]
    requests = units.many(comparison["requests"], "request")
    different = f"{units.share(differ['ratio'])} of {requests} had a different outcome"
    one_by_one = f"counted by second; {units.count(changed['requests'])} one by one."
    yield tag("p", f"{different}, {one_by_one}", class_="sentence")
    yield shown(Table("Both sides", ("", *SIDES), _sides(comparison)))
    if comparison["seconds"]:
        rows = [
            (
                units.clock(row["second"]),
                units.count(row["requests"]),
                units.count(row["differ"]),
                *_both(row),
            )
            for row in comparison["seconds"]
        ]
        yield shown(Table("The most different seconds", ("second", "requests", "different", *SIDES), rows))


def _sides(comparison: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = [
        (name, *(units.count(counts[side]) for side in SIDES))
        for table in ("decisions", "statuses")
        for name, counts in comparison[table].items()
    ]
    return rows + [
        (f"{name.removesuffix('_s')} of the served", *(units.seconds(times[side]) for side in SIDES))
        for name, times in comparison["served"].items()
    ]


def _both(row: Mapping[str, Any]) -> list[str]:
    return [", ".join(f"{count} {name}" for name, count in row[side].items()) for side in SIDES]
