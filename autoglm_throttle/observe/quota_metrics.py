"""Metrics of resource quotas: the fill of memory, and the rejecting classes. Absent without quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import QuotaView
from autoglm_throttle.observe.metric import PREFIX, MetricsInput, MetricSpec, Rows
from autoglm_throttle.types import Priority


def _one(read: Callable[[QuotaView], float | None]) -> Callable[[MetricsInput], Rows]:
    """Make a single series, if there are quotas and the value is known."""

    def rows(inputs: MetricsInput) -> Rows:
        quota = inputs.snapshot.quota
        value = None if quota is None else read(quota)
        return [] if value is None else [((), value)]

    return rows


def _measured(read: Callable[[QuotaView], float | None]) -> Callable[[MetricsInput], Rows]:
    """Make a single series for a measured value, until the measurement is too old."""
    return _one(lambda quota: None if quota.basis is FillBasis.UNKNOWN else read(quota))


def _each(read: Callable[[QuotaView], Mapping[Priority, float]]) -> Callable[[MetricsInput], Rows]:
    """Make a series for each class."""

    def rows(inputs: MetricsInput) -> Rows:
        quota = inputs.snapshot.quota
        return [] if quota is None else [((p.label,), float(value)) for p, value in read(quota).items()]

    return rows


def _basis(inputs: MetricsInput) -> Rows:
    quota = inputs.snapshot.quota
    return [] if quota is None else [((basis.value,), float(basis is quota.basis)) for basis in FillBasis]


QUOTA_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        PREFIX + "quota_memory_fill_ratio",
        "gauge",
        (),
        "Fill of the memory that requests can use, projected to the requests in flight now.",
        _one(lambda quota: quota.fill),
    ),
    MetricSpec(
        PREFIX + "quota_memory_cap_ratio",
        "gauge",
        ("priority",),
        "Share of that memory above which the class is rejected; a route may have its own. "
        "0 where memory stays above GPU_MEMORY_TARGET with nothing in flight: one request at a time.",
        _each(lambda quota: quota.caps),
    ),
    MetricSpec(
        PREFIX + "quota_rejecting",
        "gauge",
        ("priority",),
        "1 while the whole class is rejected, until the fill is 0.05 below its cap, or half of a small one. "
        "A large request may be rejected earlier.",
        _each(lambda quota: quota.rejecting),
    ),
    MetricSpec(
        PREFIX + "quota_basis",
        "stateset",
        ("basis",),
        f"Basis of the fill: {', '.join(FillBasis)}. "
        "While it is kept the caps are shares of what is left; they do nothing while it is unknown.",
        _basis,
    ),
    MetricSpec(
        PREFIX + "quota_memory_fill_per_cost_ratio",
        "gauge",
        (),
        "Fill that one unit of cost is taken to add until the next sample; 0 until it was learned.",
        _measured(lambda quota: quota.slope),
    ),
    MetricSpec(
        PREFIX + "quota_memory_usable_bytes",
        "gauge",
        (),
        "Memory that requests can fill on the fullest device; the rest of it while the basis is kept. "
        "An engine's cache reports no bytes.",
        _measured(lambda quota: quota.usable_bytes),
    ),
)
"""In the order of the page."""
