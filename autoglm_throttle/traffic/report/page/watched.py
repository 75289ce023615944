"""Plots of probe samples of the service during the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoglm_throttle.traffic.report.page import axes, units
from autoglm_throttle.traffic.report.page.curves import line as drawn
from autoglm_throttle.traffic.report.page.plot import Layer, Plot
from autoglm_throttle.traffic.report.page.requests import bands
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.page.timeline import MOST, Timeline
from autoglm_throttle.traffic.report.schema import Document


@dataclass(frozen=True, slots=True)
class Group:
    """Columns of one unit that share a plot."""

    title: str
    columns: Mapping[str, str]
    """Keys of the samples, and their names."""
    says: Callable[[float], str]
    least: float = 0.0
    """Least upper end of the axis."""
    power: int = 1
    """Base of the unit prefixes: 1024 for bytes."""

    def named(self, columns: Mapping[str, str]) -> str:
        """Return the title for these columns, without "and GPU" if no GPU column is among them."""
        gpu = any(key.startswith("gpu") for key in columns)
        return self.title if gpu else self.title.removesuffix(" and GPU")


def _watts(number: float) -> str:
    return f"{number:,.0f} W"


GROUPS = (
    Group(
        "Throttle and GPU",
        {
            "factor_ratio": "Factor on the rates",
            "gpu_utilization_ratio": "GPU utilization",
            "gpu_memory_ratio": "GPU memory",
        },
        units.share,
        1.0,
    ),
    Group("Inside the service", {"inflight": "In flight", "waiting": "Waiting in line"}, units.brief),
    Group("GPU power", {"gpu_power_w": "Power"}, _watts),
    Group("CPU of the service", {"cpu_share": "Of one core"}, units.share, 1.0),
    Group("Memory of the service", {"rss_bytes": "Resident"}, units.size, power=1024),
)
"""Plots in the order of the page."""


def plots(document: Document, line: Timeline) -> list[Plot]:
    """Plot each group that has at least one sample."""
    seen = document["watched"][:: -(-len(document["watched"]) // MOST) or 1]
    return [
        _plot(group, columns, seen, line)
        for group in GROUPS
        if (
            columns := {key: name for key, name in group.columns.items() if any(key in look for look in seen)}
        )
    ]


def _plot(group: Group, columns: Mapping[str, str], seen: list[dict[str, float]], line: Timeline) -> Plot:
    # Answers arrive after the last request was sent, and sampling continues until then.
    length_s = max(float(line.seconds), *(look["t_s"] for look in seen), 0.0)
    numbers = [look[key] for look in seen for key in columns if key in look]
    across = axes.time(length_s, units.clock)
    up = axes.linear(max(group.least, *numbers, 0.0), group.says, power=group.power)
    layers = []
    for key, name in columns.items():
        points = [(across.place(look["t_s"]), up.place(look[key])) if key in look else None for look in seen]
        layers.append(Layer(drawn(points), "line", f"of-{key}", name))
    rows = [
        (f"{look['t_s']:.1f} s", *(group.says(look[key]) if key in look else units.NONE for key in columns))
        for look in seen
    ]
    return Plot(
        title=group.named(columns),
        summary=_summary(group, columns, seen),
        across=across,
        up=up,
        layers=layers,
        bands=bands(line, length_s),
        table=Table(f"{group.named(columns)}, as it was watched", ("time", *columns.values()), rows),
    )


def _summary(group: Group, columns: Mapping[str, str], seen: list[dict[str, float]]) -> str:
    told = []
    for key, name in columns.items():
        numbers = [look[key] for look in seen if key in look]
        least, most = group.says(min(numbers)), group.says(max(numbers))
        told.append(f"{name} {least}" if least == most else f"{name} {least} to {most}")
    return f"{', '.join(told)}."
