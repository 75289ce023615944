"""Metrics of the concurrency limit by work class, and of resource quotas, absent without quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import QuotaView
from autoglm_throttle.observe.metric import (
    MetricsInput,
    MetricSpec,
    ReadRows,
    Rows,
    each,
    gauge,
    one,
    stateset,
)
from autoglm_throttle.types import ConcurrencyView, Priority, WorkClassView

CLIENT_ERROR, OTHER = "client_error", "other"  # Names of the work classes that the limiter makes itself

# Label of the requests without a work class: all of a service that was not asked over HTTP.
UNNAMED: Final = "default"

# Label of all work classes that no policy of a route names. Their names come from paths: as labels they would
# be data of clients, and series without end.
UNDECLARED: Final = "undeclared"


def _concurrency(snapshot: Snapshot) -> ConcurrencyView | None:
    return snapshot.concurrency


def _classes(inputs: MetricsInput) -> Iterable[tuple[str, WorkClassView]]:
    return _by_label(inputs).items()


def _by_label(inputs: MetricsInput) -> Mapping[str, WorkClassView]:
    """Return the figures of each label; work classes with one label become one."""
    concurrency = inputs.snapshot.concurrency
    known = {route.name: route.name for route in inputs.settings.routes}
    labels = known | {"": UNNAMED, OTHER: OTHER, CLIENT_ERROR: CLIENT_ERROR}
    found: dict[str, WorkClassView] = {}
    for figures in () if concurrency is None else concurrency.work_classes:
        label = labels.get(figures.name, UNDECLARED)
        found[label] = _together(found[label], figures) if label in found else figures
    return found


def _together(one: WorkClassView, other: WorkClassView) -> WorkClassView:
    """Return the figures of two work classes as if they were one, without a latency of both without load."""
    rate_rps = one.rate_rps + other.rate_rps
    return WorkClassView(
        name=one.name,
        rate_rps=rate_rps,
        mean_s=_mean_s(one, other, rate_rps),
        unloaded_s=None,
        negligible=one.negligible and other.negligible,
        in_flight=one.in_flight + other.in_flight,
    )


def _mean_s(one: WorkClassView, other: WorkClassView, rate_rps: float) -> float | None:
    """Return the mean time of the answers of two work classes; that of the one known if the other is not."""
    if one.mean_s is None or other.mean_s is None or not rate_rps:
        return other.mean_s if one.mean_s is None else one.mean_s
    return (one.mean_s * one.rate_rps + other.mean_s * other.rate_rps) / rate_rps


_CLASS: Final = "work_class"

LIMIT_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    gauge(
        "paused_requests",
        "Requests that have given their slot back for a while: idle streams, and writes to slow readers. "
        "At paused_max new requests are rejected.",
        one(_concurrency, lambda view: view.paused),
    ),
    gauge(
        "objective_seconds",
        "Time for a complete response that the limit aims at: SLO_S, or the learned one.",
        one(_concurrency, lambda view: view.slo_s),
    ),
    gauge(
        "objective_learned",
        "1 while the objective is learned, because SLO_S is not set.",
        one(_concurrency, lambda view: view.slo_learned),
    ),
    gauge(
        "retry_backlog_seconds",
        "Time until the last turn that was told to a rejected request in Retry-After.",
        one(_concurrency, lambda view: view.retry_backlog_s),
    ),
    gauge(
        "work_class_rate",
        "Requests finished per second, by what costs alike: the name of the policy of a route, "
        f"{UNDECLARED} for all without one, {CLIENT_ERROR} for answers 400 to 499, {OTHER} beyond 64. "
        "Of the 16 work classes with the most requests, as the next four.",
        each(_classes, lambda one: one.rate_rps),
        _CLASS,
    ),
    gauge(
        "work_class_latency_seconds",
        "Recent mean time in the service, without waiting and pauses.",
        each(_classes, lambda one: one.mean_s),
        _CLASS,
    ),
    gauge(
        "work_class_unloaded_latency_seconds",
        "Time in the service with few requests beside; absent until it is known, and where several work "
        "classes share a label.",
        each(_classes, lambda one: one.unloaded_s),
        _CLASS,
    ),
    gauge(
        "work_class_negligible",
        "1 while requests are so short beside the others that they need no slot.",
        each(_classes, lambda one: one.negligible),
        _CLASS,
    ),
    gauge(
        "work_class_inflight_requests",
        "Requests in flight, with or without a slot, paused ones included.",
        each(_classes, lambda one: one.in_flight),
        _CLASS,
    ),
)


def _quota(snapshot: Snapshot) -> QuotaView | None:
    return snapshot.quota


def _measured(read: Callable[[QuotaView], float | None]) -> ReadRows:
    """Make a single series for a measured value, until the measurement is too old."""
    return one(_quota, lambda quota: None if quota.basis is FillBasis.UNKNOWN else read(quota))


def _classes_of(read: Callable[[QuotaView], Mapping[Priority, float]]) -> ReadRows:
    """Make a series for each priority."""

    def rows(inputs: MetricsInput) -> Rows:
        quota = inputs.snapshot.quota
        return [] if quota is None else [((p.label,), float(value)) for p, value in read(quota).items()]

    return rows


def _basis(inputs: MetricsInput) -> Rows:
    quota = inputs.snapshot.quota
    return [] if quota is None else [((basis.value,), float(basis is quota.basis)) for basis in FillBasis]


QUOTA_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    gauge(
        "quota_memory_fill_ratio",
        "Fill of the memory that requests can use, projected to the requests in flight now.",
        one(_quota, lambda quota: quota.fill),
    ),
    gauge(
        "quota_memory_cap_ratio",
        "Share of that memory above which the class is rejected; a route may have its own. "
        "0 where memory stays above GPU_MEMORY_TARGET with nothing in flight: one request at a time.",
        _classes_of(lambda quota: quota.caps),
        "priority",
    ),
    gauge(
        "quota_rejecting",
        "1 while the whole class is rejected, until the fill is 0.05 below its cap, or half of a small one. "
        "A large request may be rejected earlier.",
        _classes_of(lambda quota: quota.rejecting),
        "priority",
    ),
    stateset(
        "quota_basis",
        f"Basis of the fill: {', '.join(FillBasis)}. "
        "While it is kept the caps are shares of what is left; they do nothing while it is unknown.",
        _basis,
        "basis",
    ),
    gauge(
        "quota_memory_fill_per_cost_ratio",
        "Fill that one unit of cost is taken to add until the next sample; 0 until it was learned.",
        _measured(lambda quota: quota.slope),
    ),
    gauge(
        "quota_memory_usable_bytes",
        "Memory that requests can fill on the fullest device; the rest of it while the basis is kept. "
        "An engine's cache reports no bytes.",
        _measured(lambda quota: quota.usable_bytes),
    ),
)
