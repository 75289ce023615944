"""Plots of response times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from autoglm_throttle.traffic.report.page import axes, units
from autoglm_throttle.traffic.report.page.curves import line as drawn
from autoglm_throttle.traffic.report.page.plot import Layer, Plot
from autoglm_throttle.traffic.report.page.requests import bands
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.page.timeline import Timeline
from autoglm_throttle.traffic.report.schema import Document, Times

MIN_AXIS_S = 1e-4
"""Lower end of a logarithmic axis; shorter times are of no interest."""

SHARES = ("p50_s", "p90_s", "p95_s", "p99_s", "p999_s", "max_s")
"""Columns of the table of a distribution."""


def over_time(document: Document, line: Timeline) -> Plot:
    """Plot percentiles of all served requests."""
    seconds = document["seconds"]
    columns = {"p50": seconds["p50_s"], "p95": seconds["p95_s"], "p99": seconds["p99_s"]}
    worst = max((number for number in seconds["p99_s"] if number is not None), default=None)
    summary = "Nothing was served."
    if worst is not None:
        at = units.clock(seconds["p99_s"].index(worst))
        summary = (
            f"From the intended start, of the served: the worst p99 was {units.seconds(worst)}, at {at}."
        )
    return _curves("Latency", summary, line, columns)


def by_priority(document: Document, line: Timeline) -> Plot:
    """Plot the p95 of each priority."""
    seconds = document["seconds"]["priorities"]
    columns = {name: one["p95_s"] for name, one in seconds.items() if document["priorities"][name]["planned"]}
    worst = {
        name: max((number for number in column if number is not None), default=None)
        for name, column in columns.items()
    }
    text = ", ".join(f"{name} {units.seconds(number)}" for name, number in worst.items())
    return _curves(
        "Latency by priority", f"The p95 of the served in their worst second: {text}.", line, columns
    )


def lag(document: Document, line: Timeline) -> Plot:
    """Plot the lag of the generator."""
    p99_s = document["generator"]["lag"]["p99_s"]
    summary = f"The generator's own delay, not caused by the service: p99 {units.seconds(p99_s)} in all."
    return _curves(
        "Lag of the generator", summary, line, {"p99 of the lag": document["seconds"]["lag_p99_s"]}
    )


def distribution(document: Document) -> Plot:
    """Plot the share of served requests that took longer than a given time, by priority."""
    responses = {
        name: tally["response"]
        for name, tally in document["priorities"].items()
        if tally["response"]["count"]
    }
    edges = [max(MIN_AXIS_S, us / 1e6) for times in responses.values() for us, _ in times["histogram"]]
    across = axes.logarithmic(edges, units.seconds)
    rarest = min((1.0 / times["count"] for times in responses.values()), default=0.01)
    up = axes.logarithmic([rarest, 1.0], units.power_of_ten)
    layers = [
        Layer(drawn([(across.place(x), up.place(y)) for x, y in slower(times)]), "line", f"of-{name}", name)
        for name, times in responses.items()
    ]
    limits_s = document["load"]["limits_s"]
    late = {name: _late(times, limits_s[name]) for name, times in responses.items() if name in limits_s}
    text = ", ".join(
        f"{name} {units.share(ratio)} of {units.seconds(limits_s[name])}" for name, ratio in late.items()
    )
    return Plot(
        title="How many waited longer",
        summary=f"The share of the served that took longer. Beyond their limit: {text or 'none'}.",
        across=across,
        up=up,
        layers=layers,
        across_name="longer than",
        table=Table(
            "Response time of the served by priority",
            (
                "priority",
                "served",
                "mean",
                *(name.removesuffix("_s").replace("p999", "p99.9") for name in SHARES),
            ),
            [quantile_row(name, times) for name, times in responses.items()],
        ),
    )


def quantile_row(name: str, times: Times) -> list[str]:
    """Build the table row of one distribution."""
    named = [times["p50_s"], times["p90_s"], times["p95_s"], times["p99_s"], times["p999_s"], times["max_s"]]
    return [name, units.count(times["count"]), *map(units.seconds, (times["mean_s"], *named))]


def slower(times: Times) -> list[tuple[float, float]]:
    """Return pairs of a time in seconds and the share of requests that took longer.

    The last share is one request, since a logarithmic axis has no zero.
    """
    total = times["count"]
    cumulative = accumulate(count for _, count in times["histogram"])
    corners = [
        (max(MIN_AXIS_S, us / 1e6), (total - before) / total)
        for (us, count), so_far in zip(times["histogram"], cumulative, strict=True)
        for before in (so_far - count,)
    ]
    ends = [share for _, share in corners[1:]] + [1.0 / total]
    return [
        point for (x, share), after in zip(corners, ends, strict=True) for point in ((x, share), (x, after))
    ]


def _late(times: Times, limit_s: float) -> float:
    return sum(count for us, count in times["histogram"] if us >= 1e6 * limit_s) / times["count"]


def _curves(title: str, summary: str, line: Timeline, columns: Mapping[str, Sequence[float | None]]) -> Plot:
    worst = {name: line.worst(column) for name, column in columns.items()}
    known = [max(MIN_AXIS_S, number) for column in worst.values() for number in column if number is not None]
    across, up = axes.time(line.seconds, units.clock), axes.logarithmic(known, units.seconds)
    layers = []
    for name, column in worst.items():
        points = [
            None if number is None else (across.place(at_s), up.place(number))
            for at_s, number in zip(line.middles_s, column, strict=True)
        ]
        layers.append(Layer(drawn(points), "line", f"of-{name.partition(' ')[0]}", name))
    rows = [[units.seconds(column[step]) for column in worst.values()] for step in range(len(line.names))]
    return Plot(
        title=title,
        summary=summary,
        across=across,
        up=up,
        layers=layers,
        bands=bands(line),
        tooltips=[
            f"{when}: " + ", ".join(f"{name} {cell}" for name, cell in zip(worst, row, strict=True))
            for when, row in zip(line.names, rows, strict=True)
        ],
        table=Table(
            f"{title}, by second of the intended start",
            ("time", *worst),
            [(when, *row) for when, row in zip(line.names, rows, strict=True)],
        ),
    )
