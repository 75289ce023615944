"""Plots of probe samples of the service during the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoglm_throttle.traffic.report.page import axes, units
from autoglm_throttle.traffic.report.page.curves import line as drawn
from autoglm_throttle.traffic.report.page.plot import Layer, Plot
from autoglm_throttle.traffic.report.page.requests import bands
from autoglm_throttle.traffic.report.page.tables import Table
from autoglm_throttle.traffic.report.page.timeline import MAX_STEPS, Timeline
from autoglm_throttle.traffic.report.schema import Document


@dataclass(frozen=True, slots=True)
class PlotGroup:
    """Columns of one unit that share a plot."""

    title: str
    columns: Mapping[str, str]
    """Keys of the samples, and their names."""
    label: Callable[[float], str]
    least: float = 0.0
    """Least upper end of the axis."""
    power: int = 1
    """Base of the unit prefixes: 1024 for bytes."""

    def title_for(self, columns: Mapping[str, str]) -> str:
        """Return the title for these columns, without "and GPU" if no GPU column is among them."""
        gpu = any(key.startswith("gpu") for key in columns)
        return self.title if gpu else self.title.removesuffix(" and GPU")


def _watts(number: float) -> str:
    return f"{number:,.0f} W"


GROUPS = (
    PlotGroup(
        "Throttle and GPU",
        {
            "factor_ratio": "Factor on the rates",
            "gpu_utilization_ratio": "GPU utilization",
            "gpu_memory_ratio": "GPU memory",
        },
        units.share,
        1.0,
    ),
    PlotGroup("Requests in the service", {"inflight": "In flight", "waiting": "Queued"}, units.brief),
    PlotGroup("GPU power", {"gpu_power_w": "Power"}, _watts),
    PlotGroup("CPU of the service", {"cpu_share": "Of one core"}, units.share, 1.0),
    PlotGroup("Memory of the service", {"rss_bytes": "Resident"}, units.size, power=1024),
)
"""Plots in the order of the page."""


def plots(document: Document, line: Timeline) -> list[Plot]:
    """Plot each group that has at least one sample."""
    samples = document["watched"][:: -(-len(document["watched"]) // MAX_STEPS) or 1]
    return [
        _plot(group, columns, samples, line)
        for group in GROUPS
        if (
            columns := {
                key: name for key, name in group.columns.items() if any(key in sample for sample in samples)
            }
        )
    ]


def _plot(
    group: PlotGroup, columns: Mapping[str, str], samples: list[dict[str, float]], line: Timeline
) -> Plot:
    # Answers arrive after the last request was sent, and sampling continues until then.
    length_s = max(float(line.seconds), *(sample["t_s"] for sample in samples), 0.0)
    numbers = [sample[key] for sample in samples for key in columns if key in sample]
    across = axes.time(length_s, units.clock)
    up = axes.linear(max(group.least, *numbers, 0.0), group.label, power=group.power)
    layers = []
    for key, name in columns.items():
        points = [
            (across.place(sample["t_s"]), up.place(sample[key])) if key in sample else None
            for sample in samples
        ]
        layers.append(Layer(drawn(points), "line", f"of-{key}", name))
    rows = [
        (
            f"{sample['t_s']:.1f} s",
            *(group.label(sample[key]) if key in sample else units.NO_DATA for key in columns),
        )
        for sample in samples
    ]
    return Plot(
        title=group.title_for(columns),
        summary=_summary(group, columns, samples),
        across=across,
        up=up,
        layers=layers,
        bands=bands(line, length_s),
        table=Table(f"{group.title_for(columns)}, as sampled", ("time", *columns.values()), rows),
    )


def _summary(group: PlotGroup, columns: Mapping[str, str], samples: list[dict[str, float]]) -> str:
    parts = []
    for key, name in columns.items():
        numbers = [sample[key] for sample in samples if key in sample]
        least, most = group.label(min(numbers)), group.label(max(numbers))
        parts.append(f"{name} {least}" if least == most else f"{name} {least} to {most}")
    return f"{', '.join(parts)}."
