"""Metrics of the concurrency limit by work class, of its pauses, its objective and its retry schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from autoglm_throttle.observe.metric import PREFIX, MetricsInput, MetricSpec, Rows
from autoglm_throttle.types import ConcurrencyView, WorkClassView

CLIENT_ERROR, OTHER = "client_error", "other"
"""Names of the work classes that the limiter makes itself."""

UNNAMED: Final = "default"
"""Label of the requests without a work class: all of a service that was not asked over HTTP."""

UNDECLARED: Final = "undeclared"
"""Label of all work classes that no policy of a route names. Their names come from paths: as labels they
would be data of clients, and series without end.
"""


def _one(read: Callable[[ConcurrencyView], float]) -> Callable[[MetricsInput], Rows]:
    """Make a single series, if requests in flight are limited."""

    def rows(inputs: MetricsInput) -> Rows:
        concurrency = inputs.snapshot.concurrency
        return [] if concurrency is None else [((), float(read(concurrency)))]

    return rows


def _each(read: Callable[[WorkClassView], float | None]) -> Callable[[MetricsInput], Rows]:
    """Make a series for each label that has the value."""

    def rows(inputs: MetricsInput) -> Rows:
        values = ((label, read(figures)) for label, figures in _by_label(inputs).items())
        return [((label,), float(value)) for label, value in values if value is not None]

    return rows


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


def _specs() -> Iterator[MetricSpec]:
    labels = ("work_class",)
    yield MetricSpec(
        PREFIX + "paused_requests",
        "gauge",
        (),
        "Requests that have given their slot back for a while: idle streams, and writes to slow readers. "
        "At paused_max new requests are rejected.",
        _one(lambda view: view.paused),
    )
    yield MetricSpec(
        PREFIX + "objective_seconds",
        "gauge",
        (),
        "Time for a complete response that the limit aims at: SLO_S, or the learned one.",
        _one(lambda view: view.slo_s),
    )
    yield MetricSpec(
        PREFIX + "objective_learned",
        "gauge",
        (),
        "1 while the objective is learned, because SLO_S is not set.",
        _one(lambda view: view.slo_learned),
    )
    yield MetricSpec(
        PREFIX + "retry_backlog_seconds",
        "gauge",
        (),
        "Time until the last turn that was told to a rejected request in Retry-After.",
        _one(lambda view: view.retry_backlog_s),
    )
    yield MetricSpec(
        PREFIX + "work_class_rate",
        "gauge",
        labels,
        "Requests finished per second, by what costs alike: the name of the policy of a route, "
        f"{UNDECLARED} for all without one, {CLIENT_ERROR} for answers 400 to 499, {OTHER} beyond 64. "
        "Of the 16 work classes with the most requests, as the next four.",
        _each(lambda figures: figures.rate_rps),
    )
    yield MetricSpec(
        PREFIX + "work_class_latency_seconds",
        "gauge",
        labels,
        "Recent mean time in the service, without waiting and pauses.",
        _each(lambda figures: figures.mean_s),
    )
    yield MetricSpec(
        PREFIX + "work_class_unloaded_latency_seconds",
        "gauge",
        labels,
        "Time in the service with few requests beside; absent until it is known, and where several work "
        "classes share a label.",
        _each(lambda figures: figures.unloaded_s),
    )
    yield MetricSpec(
        PREFIX + "work_class_negligible",
        "gauge",
        labels,
        "1 while requests are so short beside the others that they need no slot.",
        _each(lambda figures: figures.negligible),
    )
    yield MetricSpec(
        PREFIX + "work_class_inflight_requests",
        "gauge",
        labels,
        "Requests in flight, with or without a slot, paused ones included.",
        _each(lambda figures: figures.in_flight),
    )


LIMIT_METRICS: Final[tuple[MetricSpec, ...]] = tuple(_specs())
"""In the order of the page."""
