"""The table of all metrics: names, labels, and the sources of their values.

`METRICS` is the only place that names a metric; the collector, the endpoint and the page of the
documentation are made from it. An unknown value has no series: it is absent, never 0.
Labels are closed sets from code, settings or the driver, never data that a client has sent.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from autoglm_throttle.admission.counters import ODDITIES
from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.scaling import SCALING_TERMS
from autoglm_throttle.observe.dependency_metrics import BATCHER_METRICS, GUARD_METRICS, STORE_METRICS
from autoglm_throttle.observe.gpu_metrics import ENGINE_METRICS, GPU_METRICS, SOURCE_METRICS
from autoglm_throttle.observe.host_metrics import HOST_METRICS
from autoglm_throttle.observe.metric import (
    Histograms,
    HistogramSpec,
    Labels,
    MetricsInput,
    MetricSpec,
    ReadRows,
    Rows,
    by_key,
    counter,
    gauge,
    histogram,
    info,
    one,
    per,
    states,
    stateset,
)
from autoglm_throttle.observe.recent_metrics import RECENT_METRICS
from autoglm_throttle.types import (
    GpuCondition,
    Priority,
    Signal,
    TelemetryState,
    WorkClassView,
)
from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoglm_throttle.admission.counters import DurationHistogram
    from autoglm_throttle.control.quota import QuotaView
    from autoglm_throttle.types import ControlState

# States and conditions in which the load is not known, or is that of fewer devices than there are.
_OLD_SAMPLE: Final = frozenset({TelemetryState.STALE, TelemetryState.BLIND})
_FAULTY: Final = frozenset({GpuCondition.LOST, GpuCondition.STALLED})
# States without a sample for the table.
_NO_SAMPLE: Final = frozenset({TelemetryState.STARTING, TelemetryState.BLIND, TelemetryState.NONE})

CLIENT_ERROR, OTHER = "client_error", "other"  # Names of the work classes that the limiter makes itself

# Label of the requests without a work class: all of a service that was not asked over HTTP.
UNNAMED: Final = "default"

# Label of all routes and work classes that no policy of a route names. Their names come from paths: as
# labels they would be data of clients, and series without end.
UNDECLARED: Final = "undeclared"


def _requests(inputs: MetricsInput) -> Rows:
    yield from by_key("requests")(inputs)
    yield ("none", "exempt", "ok"), inputs.snapshot.exempt


def _rejections(inputs: MetricsInput) -> Rows:
    declared, found = {route.name for route in inputs.settings.routes}, Counter[Labels]()
    for (route, limit), count in inputs.snapshot.rejections.items():
        found[route if route in declared else UNDECLARED, limit] += count
    return found.items()


def _durations(inputs: MetricsInput) -> Histograms:
    return [((priority.label, "admitted"), row) for priority, row in inputs.snapshot.durations.items()]


def _of_streams(name: str, inputs: MetricsInput) -> Histograms:
    """Return a histogram by priority, without those of which no event stream was sent."""
    rows: Mapping[Priority, DurationHistogram] = getattr(inputs.snapshot, name)
    return [((priority.label,), row) for priority, row in rows.items() if any(row.counts)]


def _queued(inputs: MetricsInput) -> Rows:
    concurrency = inputs.snapshot.concurrency
    return [] if concurrency is None else [((p.label,), concurrency.waiting[p]) for p in Priority]


def _token_estimates(inputs: MetricsInput) -> Rows:
    counts = inputs.snapshot.token_counts
    for (kind, ratio), count in () if counts is None else counts.estimates.items():
        yield (kind, "+Inf" if math.isinf(ratio) else f"{ratio:g}"), count


def _tier(inputs: MetricsInput) -> Rows:
    """One state per step of the table; on the way up the last step reached is the one in force."""
    steps = sorted({1.0, *(factor for _, factor in inputs.settings.control.tiers)})
    tier = inputs.snapshot.control.tier
    in_force = max((step for step in steps if step <= tier), default=steps[0])
    return [((f"{step * 100:g}",), float(step == in_force)) for step in reversed(steps)]


def _recorded(inputs: MetricsInput) -> Rows:
    if inputs.recorder is None:
        return []
    written, dropped, _ = inputs.recorder.counts
    return [(("written",), written), (("dropped",), dropped)]


def _inflight_limit(inputs: MetricsInput) -> Rows:
    """Return the smallest of all bounds; no series without one."""
    view, most = inputs.snapshot.concurrency, inputs.settings.concurrency.inflight_max or math.inf
    limit = math.inf if view is None else min(view.limit, view.memory_cap, most)
    return [] if math.isinf(limit) else [((), limit)]


def _scale_hold(inputs: MetricsInput) -> Rows:
    snapshot = inputs.snapshot
    verdicts = () if snapshot.view is None else snapshot.view.verdicts.values()
    faulty = any(one.condition in _FAULTY for one in verdicts)
    lost = any(device.health == "lost" for device in snapshot.devices)
    unknown = snapshot.replicas_ratio is None or snapshot.control.telemetry in _OLD_SAMPLE
    yield (), float(faulty or lost or unknown)


def _load_signal(inputs: MetricsInput) -> Rows:
    """One state per signal; none before the first sample, which may bring another."""
    control = inputs.snapshot.control
    if control.telemetry not in _NO_SAMPLE:
        yield from (((one.value,), float(one is control.signal)) for one in Signal if one is not Signal.AUTO)


def _table_factor(control: ControlState) -> float | None:
    return None if control.telemetry in _NO_SAMPLE else control.table_factor


def work_classes(inputs: MetricsInput) -> Iterable[tuple[str, WorkClassView]]:
    """Return the figures of each label; work classes with one label become one."""
    concurrency = inputs.snapshot.concurrency
    known = {route.name: route.name for route in inputs.settings.routes}
    labels = known | {"": UNNAMED, OTHER: OTHER, CLIENT_ERROR: CLIENT_ERROR}
    found: dict[str, WorkClassView] = {}
    for figures in () if concurrency is None else concurrency.work_classes:
        label = labels.get(figures.name, UNDECLARED)
        found[label] = _together(found[label], figures) if label in found else figures
    return found.items()


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


def _measured(attribute: str) -> ReadRows:
    """Make a single series for a measured value of the quotas, until the measurement is too old."""

    def read(quota: QuotaView) -> float | None:
        return None if quota.basis is FillBasis.UNKNOWN else getattr(quota, attribute)

    return one("quota", read)


_work_class = partial(per(work_classes, "work_class"), "gauge")

METRICS: Final[tuple[MetricSpec | HistogramSpec, ...]] = (
    counter(
        "requests",
        "Decisions: admitted, limited (429, 413: the caller's own limit), shed (503: our load), "
        "degraded (a fallback answered in place of a 503), or exempt, which has no priority.",
        _requests,
        "priority decision reason",
    ),
    counter(
        "rejections",
        f"Rejections by the policy of the route, {UNDECLARED} for all without one, and by the limit that "
        "decided: a user limit by its name, the rate of a priority, queue, gpu, memory, store or breaker.",
        _rejections,
        "route limit",
    ),
    histogram(
        "request_duration_seconds",
        "Time from arrival to the last byte of the answer, waiting included. Not of clients that left.",
        _durations,
        "priority decision",
    ),
    gauge("active_requests", "Requests admitted and not yet ended.", by_key("active"), "priority"),
    gauge("queued_requests", "Requests that wait in the queue.", _queued, "priority"),
    histogram(
        "queue_time_seconds",
        "Time in the queue of requests that had to wait, whether or not they were admitted.",
        by_key("queue_time"),
        "priority",
    ),
    histogram(
        "time_to_first_token_seconds",
        "Time from arrival to the first event with data of an event stream, waiting included.",
        partial(_of_streams, "first_token"),
        "priority",
    ),
    histogram(
        "inter_token_latency_seconds",
        "Time between two events with data of an event stream. An event may carry several tokens.",
        partial(_of_streams, "inter_token"),
        "priority",
    ),
    counter(
        "outcomes",
        "How admitted requests ended: success, failure, or neutral where the client left.",
        by_key("outcomes"),
        "priority outcome",
    ),
    counter("response_chunks", "Parts of responses sent to clients.", one("chunks")),
    counter(
        "would_reject",
        "Requests that were admitted only because DRY_RUN is on.",
        by_key("would_reject"),
        "priority reason",
    ),
    counter("oddities", f"Oddities that were dealt with: {', '.join(ODDITIES)}.", by_key("oddities"), "kind"),
    gauge(
        "factor_ratio",
        "Share of the nominal rates admitted now, 0 to 1; 0 rejects all new requests.",
        one("control.factor"),
    ),
    stateset("tier", "Step of the tier table in force, in percent of the nominal rates.", _tier, "tier"),
    gauge(
        "table_factor_ratio",
        "Factor of the tier table taken literally, 0 to 1, whether or not it is applied.",
        one("control", _table_factor),
    ),
    gauge(
        "table_armed",
        "1 while the tier table may act; under the policy adaptive only while requests wait.",
        one("control.armed"),
    ),
    stateset(
        "load_signal",
        "Signal that the table compares with its bands: utilization, pressure. Absent without a sample.",
        _load_signal,
        "signal",
    ),
    gauge(
        "inflight_requests",
        "Requests in flight, including those just admitted from the queue.",
        one("concurrency.in_flight"),
    ),
    gauge(
        "inflight_limit",
        "Concurrency limit now: the smallest of the learned limit, the memory cap and INFLIGHT_MAX.",
        _inflight_limit,
    ),
    gauge(
        "service_rate",
        "Requests that the service finishes per second; a lower bound until its limit was once reached.",
        one("concurrency.service_rps"),
    ),
    gauge(
        "pressure_ratio",
        "Load over its target, by term, 1 at the target and more above it: demand (over the service rate), "
        "and of gpu_pressure_terms those that are known.",
        by_key("pressure"),
        "term",
    ),
    gauge(
        "desired_replicas_ratio",
        "Wanted replicas over the present ones, the number to scale by: the largest of the terms "
        f"{', '.join(SCALING_TERMS)} of the pressure, averaged over a minute. Unknown terms are left out.",
        one("replicas_ratio"),
    ),
    gauge(
        "scale_hold",
        "1 while replicas must not be removed: telemetry is stale or blind, a device is lost or stalled, or "
        "the ratio is not known.",
        _scale_hold,
    ),
    gauge(
        "rate_limit",
        "Tokens refilled per second now; in a fleet for all processes, while its store is unavailable the "
        "part of this one.",
        by_key("rate_limit_rps"),
        "priority",
    ),
    gauge("tokens", "Tokens left in the bucket.", by_key("tokens"), "priority"),
    counter(
        "limited_tokens",
        "Tokens of requests under a limit in tokens: reserved at admission, settled as used, given_back, and "
        "overrun beyond the reservation.",
        by_key("token_counts.by_result"),
        "result",
    ),
    counter(
        "token_streams_ended",
        "Streams that tokens_overrun has stopped or aborted.",
        one("token_counts.ended"),
    ),
    counter(
        "token_estimates",
        "Complete responses that report their tokens, by what was reserved over what was used: above the "
        "next lower ratio, and at most this one.",
        _token_estimates,
        "kind ratio",
    ),
    gauge(
        "paused_requests",
        "Requests that have given their slot back for a while: idle streams, and writes to slow readers. "
        "At paused_max new requests are rejected.",
        one("concurrency.paused"),
    ),
    gauge(
        "objective_seconds",
        "Time for a complete response that the limit aims at: SLO_S, or the learned one.",
        one("concurrency.slo_s"),
    ),
    gauge(
        "objective_learned",
        "1 while the objective is learned, because SLO_S is not set.",
        one("concurrency.slo_learned"),
    ),
    gauge(
        "retry_backlog_seconds",
        "Time until the last turn that was told to a rejected request in Retry-After.",
        one("concurrency.retry_backlog_s"),
    ),
    _work_class(
        "work_class_rate",
        "Requests finished per second, by what costs alike: the name of the policy of a route, "
        f"{UNDECLARED} for all without one, {CLIENT_ERROR} for answers 400 to 499, {OTHER} beyond 64. "
        "Of the 16 work classes with the most requests, as the next four.",
        "rate_rps",
    ),
    _work_class(
        "work_class_latency_seconds", "Recent mean time in the service, without waiting and pauses.", "mean_s"
    ),
    _work_class(
        "work_class_unloaded_latency_seconds",
        "Time in the service with few requests beside; absent until it is known, and where several work "
        "classes share a label.",
        "unloaded_s",
    ),
    _work_class(
        "work_class_negligible", "1 while requests are so short beside the others that they need no slot."
    ),
    _work_class(
        "work_class_inflight_requests",
        "Requests in flight, with or without a slot, paused ones included.",
        "in_flight",
    ),
    gauge(
        "quota_memory_fill_ratio",
        "Fill of the memory that requests can use, projected to the requests in flight now.",
        one("quota.fill"),
    ),
    gauge(
        "quota_memory_cap_ratio",
        "Share of that memory above which the class is rejected; a route may have its own. "
        "0 where memory stays above GPU_MEMORY_TARGET with nothing in flight: one request at a time.",
        by_key("quota.caps"),
        "priority",
    ),
    gauge(
        "quota_rejecting",
        "1 while the whole class is rejected, until the fill is 0.05 below its cap, or half of a small one. "
        "A large request may be rejected earlier.",
        by_key("quota.rejecting"),
        "priority",
    ),
    stateset(
        "quota_basis",
        f"Basis of the fill: {', '.join(FillBasis)}. "
        "While it is kept the caps are shares of what is left; they do nothing while it is unknown.",
        states("quota.basis", FillBasis),
        "basis",
    ),
    gauge(
        "quota_memory_fill_per_cost_ratio",
        "Fill that one unit of cost is taken to add until the next sample; 0 until it was learned.",
        _measured("slope"),
    ),
    gauge(
        "quota_memory_usable_bytes",
        "Memory that requests can fill on the fullest device; the rest of it while the basis is kept. "
        "An engine's cache reports no bytes.",
        _measured("usable_bytes"),
    ),
    *STORE_METRICS,
    *GUARD_METRICS,
    *BATCHER_METRICS,
    *GPU_METRICS,
    *ENGINE_METRICS,
    *SOURCE_METRICS,
    *HOST_METRICS,
    *RECENT_METRICS,
    counter(
        "recorder_records",
        "Requests that the recorder of traffic has written, and those that it had to drop.",
        _recorded,
        "result",
    ),
    info("build_info", "The version of this library.", lambda _: [((__version__,), 1)], "version"),
)
"""Every metric, in the order of the page."""
