"""Plots of request results, second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoglm_throttle.traffic.report.page import axes, units
from autoglm_throttle.traffic.report.page.curves import band, stacked, stairs
from autoglm_throttle.traffic.report.page.plot import Band, Layer, Plot
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.page.timeline import Timeline
from autoglm_throttle.traffic.report.schema import Document

FATES = {
    "ok": "served",
    "degraded": "served by a fallback",
    "limited": "limited (429)",
    "rejected": "rejected (503)",
    "failed": "failed",
    "dropped": "dropped by the generator",
}
"""Results in stacking order, and their display names."""

OFFERED = "offered"


def offered(document: Document, line: Timeline) -> Plot:
    """Plot all requests: the offered load and its results."""
    seconds = document["seconds"]
    fates = {
        "ok": seconds["ok"],
        "degraded": seconds["degraded"],
        "limited": seconds["limited"],
        "rejected": seconds["rejected"],
        "failed": seconds["failed"],
        "dropped": seconds["dropped"],
    }
    most = max(line.mean(seconds["planned"]), default=0.0)
    refused = max(
        line.mean([a + b for a, b in zip(fates["limited"], fates["rejected"], strict=True)]), default=0.0
    )
    failed = sum(fates["failed"]) + sum(fates["dropped"])
    back = (
        f"in the worst second {units.count(refused)} were told to come back"
        if refused
        else "none was refused"
    )
    lost = units.count(failed) if failed else "none"
    summary = f"At most {units.rate(most)} were offered; {back}, and {lost} failed."
    return _piled("Requests, and what became of them", summary, line, seconds["planned"], fates)


def by_priority(document: Document, line: Timeline) -> list[Plot]:
    """Plot the results of each priority in the load."""
    plots = []
    for name, tally in document["priorities"].items():
        if not tally["planned"]:
            continue
        seconds = document["seconds"]["priorities"][name]
        fates = {
            "ok": seconds["served"],
            "limited": seconds["limited"],
            "rejected": seconds["rejected"],
            "failed": seconds["failed"],
            "dropped": seconds["dropped"],
        }
        sent = tally["planned"] - tally["unsent"]
        served = sum(seconds["served"]) / sent if sent else None
        summary = f"{units.share(served)} of {units.count(sent)} requests were served."
        plots.append(_piled(f"Priority {name}", summary, line, seconds["planned"], fates, ticks=4))
    return plots


def in_flight(document: Document, line: Timeline) -> Plot:
    """Plot the requests in flight."""
    numbers = line.worst(document["seconds"]["inflight"])
    heights = [number or 0.0 for number in numbers]
    across, up = axes.time(line.seconds, units.clock), axes.linear(max(heights, default=0.0), units.count)
    edges = [across.place(edge) for edge in line.edges_s]
    tops = [up.place(height) for height in heights]
    return Plot(
        title="In flight",
        summary=f"At most {units.count(max(heights, default=0.0))} requests were open at once.",
        across=across,
        up=up,
        layers=[Layer(band(edges, [0.0] * len(tops), tops), "area", "calm")],
        bands=bands(line),
        hints=[f"{name}: {units.count(height)}" for name, height in zip(line.names, heights, strict=True)],
        table=Table(
            "In flight, the most of each second",
            ("time", "in flight"),
            [(name, units.count(height)) for name, height in zip(line.names, heights, strict=True)],
        ),
    )


def bands(line: Timeline, length_s: float | None = None) -> list[Band]:
    """Return the segments of the run as bands on a time axis; default length: the plan."""
    whole_s = length_s or line.seconds
    return [Band(mark.start_s / whole_s, mark.end_s / whole_s, mark.name) for mark in line.marks]


def _piled(
    title: str,
    summary: str,
    line: Timeline,
    planned: Sequence[int],
    fates: Mapping[str, Sequence[int]],
    *,
    ticks: int = 6,
) -> Plot:
    present = {name: line.mean(counts) for name, counts in fates.items() if any(counts)}
    offers = line.mean(planned)
    across = axes.time(line.seconds, units.clock, ticks=ticks)
    up = axes.linear(max(offers, default=0.0), units.rate)
    edges = [across.place(edge) for edge in line.edges_s]
    layers = [
        Layer(band(edges, list(map(up.place, lower)), list(map(up.place, upper))), "area", name, FATES[name])
        for name, (lower, upper) in zip(present, stacked(present.values()), strict=True)
    ]
    layers.append(Layer(stairs(edges, list(map(up.place, offers))), "line", "offered", OFFERED))
    columns = {OFFERED: offers} | {FATES[name]: rates for name, rates in present.items()}
    rows = [[units.rate(column[step]) for column in columns.values()] for step in range(len(offers))]
    return Plot(
        title=title,
        summary=summary,
        across=across,
        up=up,
        layers=layers,
        bands=bands(line),
        hints=[
            f"{when}: " + ", ".join(f"{name} {cell}" for name, cell in zip(columns, row, strict=True))
            for when, row in zip(line.names, rows, strict=True)
        ],
        table=Table(
            f"{title}, per second of the intended start",
            ("time", *columns),
            [(when, *row) for when, row in zip(line.names, rows, strict=True)],
        ),
    )
