"""Plots of request results, second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoglm_throttle.traffic.report.page import axes, units
from autoglm_throttle.traffic.report.page.curves import band, stacked, stairs
from autoglm_throttle.traffic.report.page.plot import Layer, Plot, PlotBand
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.page.timeline import Timeline
from autoglm_throttle.traffic.report.schema import Document

RESULT_NAMES = {
    "ok": "served",
    "degraded": "served by a fallback",
    "limited": "limited (429)",
    "shed": "shed (503)",
    "failed": "failed",
    "dropped": "dropped by the generator",
}
"""Results in stacking order, and their display names."""

OFFERED = "offered"


def offered(document: Document, line: Timeline) -> Plot:
    """Plot all requests: the offered load and its results."""
    seconds = document["seconds"]
    results = {
        "ok": seconds["ok"],
        "degraded": seconds["degraded"],
        "limited": seconds["limited"],
        "shed": seconds["shed"],
        "failed": seconds["failed"],
        "dropped": seconds["dropped"],
    }
    most = max(line.mean(seconds["planned"]), default=0.0)
    rejected = max(
        line.mean([a + b for a, b in zip(results["limited"], results["shed"], strict=True)]), default=0.0
    )
    failed = sum(results["failed"]) + sum(results["dropped"])
    rejections = (
        f"in the worst second {units.count(rejected)} were rejected" if rejected else "none was rejected"
    )
    failures = units.count(failed) if failed else "none"
    summary = f"At most {units.rate(most)} were offered; {rejections}, and {failures} failed."
    return _stacked_plot("Requests by outcome", summary, line, seconds["planned"], results)


def by_priority(document: Document, line: Timeline) -> list[Plot]:
    """Plot the results of each priority in the load."""
    plots = []
    for name, tally in document["priorities"].items():
        if not tally["planned"]:
            continue
        seconds = document["seconds"]["priorities"][name]
        results = {
            "ok": seconds["served"],
            "limited": seconds["limited"],
            "shed": seconds["shed"],
            "failed": seconds["failed"],
            "dropped": seconds["dropped"],
        }
        sent = tally["planned"] - tally["unsent"]
        served = sum(seconds["served"]) / sent if sent else None
        summary = f"{units.share(served)} of {units.count(sent)} requests were served."
        plots.append(_stacked_plot(f"Priority {name}", summary, line, seconds["planned"], results, ticks=4))
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
        layers=[Layer(band(edges, [0.0] * len(tops), tops), "area", "neutral")],
        bands=bands(line),
        tooltips=[f"{name}: {units.count(height)}" for name, height in zip(line.names, heights, strict=True)],
        table=Table(
            "In flight, the most of each second",
            ("time", "in flight"),
            [(name, units.count(height)) for name, height in zip(line.names, heights, strict=True)],
        ),
    )


def bands(line: Timeline, length_s: float | None = None) -> list[PlotBand]:
    """Return the segments of the run as bands on a time axis; default length: the plan."""
    whole_s = length_s or line.seconds
    return [PlotBand(mark.start_s / whole_s, mark.end_s / whole_s, mark.name) for mark in line.marks]


def _stacked_plot(
    title: str,
    summary: str,
    line: Timeline,
    planned: Sequence[int],
    results: Mapping[str, Sequence[int]],
    *,
    ticks: int = 6,
) -> Plot:
    present = {name: line.mean(counts) for name, counts in results.items() if any(counts)}
    offers = line.mean(planned)
    across = axes.time(line.seconds, units.clock, ticks=ticks)
    up = axes.linear(max(offers, default=0.0), units.rate)
    edges = [across.place(edge) for edge in line.edges_s]
    layers = [
        Layer(
            band(edges, list(map(up.place, lower)), list(map(up.place, upper))),
            "area",
            name,
            RESULT_NAMES[name],
        )
        for name, (lower, upper) in zip(present, stacked(present.values()), strict=True)
    ]
    layers.append(Layer(stairs(edges, list(map(up.place, offers))), "line", "offered", OFFERED))
    columns = {OFFERED: offers} | {RESULT_NAMES[name]: rates for name, rates in present.items()}
    rows = [[units.rate(column[step]) for column in columns.values()] for step in range(len(offers))]
    return Plot(
        title=title,
        summary=summary,
        across=across,
        up=up,
        layers=layers,
        bands=bands(line),
        tooltips=[
            f"{when}: " + ", ".join(f"{name} {cell}" for name, cell in zip(columns, row, strict=True))
            for when, row in zip(line.names, rows, strict=True)
        ],
        table=Table(
            f"{title}, per second of the intended start",
            ("time", *columns),
            [(when, *row) for when, row in zip(line.names, rows, strict=True)],
        ),
    )
