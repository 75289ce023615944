"""Metrics of the host, with the meaning that they have in node_exporter."""

from __future__ import annotations

from typing import Final

from autoglm_throttle.observe.host import RESOURCES
from autoglm_throttle.observe.metric import MetricsInput, MetricSpec, Rows, gauge


def _host(name: str, text: str, labels: str = "") -> MetricSpec:
    """Describe a metric from the field of `HostView` with its name; with labels the field is a mapping."""

    def rows(inputs: MetricsInput) -> Rows:
        value = getattr(inputs.host, name)
        if labels:
            return [((key,), amount) for key, amount in sorted(value.items())]
        return [] if value is None else [((), value)]

    return gauge(f"host_{name}", text, rows, labels)


HOST_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    _host(
        "cpu_ratio",
        "Busy share of all cores, 0 to 1; with a limit on the cores of the control group, of that limit. "
        "As all rates of the host since the reading before, at least 1 s.",
    ),
    _host("cpu_busiest_ratio", "Busy share of the busiest core, 0 to 1: an event loop uses one."),
    _host(
        "cpu_throttled_ratio",
        "Share of periods in which the control group used up its cores and was held, 0 to 1.",
    ),
    _host("iowait_ratio", "Share of the cores' time in which they only waited for a disk, 0 to 1."),
    _host(
        "memory_used_bytes",
        "Memory in use, without what the system can free at once; with a limit on the control group its own.",
    ),
    _host("memory_total_bytes", "Memory there is, or the limit of the control group."),
    _host(
        "pressure_ratio",
        f"Share of time in which some process waited for the resource, 0 to 1: {', '.join(RESOURCES)}. "
        "Of the control group, else of the host (PSI).",
        "resource",
    ),
    _host("swap_bytes_per_second", "Memory moved to and from swap, by direction: in, out.", "direction"),
    _host("disk_bytes_per_second", "Data of all disks, by direction: read, write.", "direction"),
    _host(
        "network_bytes_per_second",
        "Data of all interfaces, loopback included, by direction: receive, transmit.",
        "direction",
    ),
)
