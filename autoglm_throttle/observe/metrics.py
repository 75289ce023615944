"""The table of all metrics: names, labels, and the sources of their values.

`METRICS` is the only place that names a metric; the collector, the endpoint and the page of the
documentation are made from it. An unknown value has no series: it is absent, never 0.
Labels are closed sets from code, settings or the driver, never data that a client has sent.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.admission.counters import ODDITIES
from autoglm_throttle.observe.engine_metrics import ENGINE_METRICS
from autoglm_throttle.observe.gpu_metrics import GPU_METRICS
from autoglm_throttle.observe.guard_metrics import GUARD_METRICS
from autoglm_throttle.observe.limit_metrics import LIMIT_METRICS
from autoglm_throttle.observe.metric import (
    PREFIX,
    Histograms,
    HistogramSpec,
    MetricsInput,
    MetricSpec,
    Rows,
)
from autoglm_throttle.observe.quota_metrics import QUOTA_METRICS
from autoglm_throttle.observe.source_metrics import SOURCE_METRICS
from autoglm_throttle.observe.store_metrics import STORE_METRICS
from autoglm_throttle.types import Priority, TelemetryState
from autoglm_throttle.version import __version__

_NO_SAMPLE: Final = frozenset({TelemetryState.STARTING, TelemetryState.BLIND, TelemetryState.NONE})
"""States without a sample for the table."""


def _requests(inputs: MetricsInput) -> Rows:
    for (priority, decision, reason), count in inputs.snapshot.requests.items():
        yield (priority.label, decision, reason.value), count
    yield ("none", "exempt", "ok"), inputs.snapshot.exempt


def _durations(inputs: MetricsInput) -> Histograms:
    return [((priority.label, "admitted"), row) for priority, row in inputs.snapshot.durations.items()]


def _active(inputs: MetricsInput) -> Rows:
    return [((priority.label,), count) for priority, count in inputs.snapshot.active.items()]


def _queued(inputs: MetricsInput) -> Rows:
    concurrency = inputs.snapshot.concurrency
    return (
        []
        if concurrency is None
        else [((p.label,), n) for p, n in zip(Priority, concurrency.waiting, strict=True)]
    )


def _queue_time(inputs: MetricsInput) -> Histograms:
    return [((priority.label,), row) for priority, row in inputs.snapshot.queue_time.items()]


def _outcomes(inputs: MetricsInput) -> Rows:
    counts = inputs.snapshot.outcomes.items()
    return [((priority.label, outcome.value), count) for (priority, outcome), count in counts]


def _would_reject(inputs: MetricsInput) -> Rows:
    counts = inputs.snapshot.would_reject.items()
    return [((priority.label, reason.value), count) for (priority, reason), count in counts]


def _oddities(inputs: MetricsInput) -> Rows:
    return [((name,), count) for name, count in inputs.snapshot.oddities.items()]


def _factor(inputs: MetricsInput) -> Rows:
    return [((), inputs.snapshot.control.factor)]


def _tier(inputs: MetricsInput) -> Rows:
    """One state per step of the table; on the way up the last step reached is the one in force."""
    steps = sorted({1.0, *(factor for _, factor in inputs.settings.control.tiers)})
    tier = inputs.snapshot.control.tier
    in_force = max((step for step in steps if step <= tier), default=steps[0])
    return [((f"{step * 100:g}",), float(step == in_force)) for step in reversed(steps)]


def _table_factor(inputs: MetricsInput) -> Rows:
    control = inputs.snapshot.control
    return [] if control.telemetry in _NO_SAMPLE else [((), control.table_factor)]


def _table_armed(inputs: MetricsInput) -> Rows:
    return [((), float(inputs.snapshot.control.armed))]


def _inflight(inputs: MetricsInput) -> Rows:
    concurrency = inputs.snapshot.concurrency
    return [] if concurrency is None else [((), concurrency.in_flight)]


def _inflight_limit(inputs: MetricsInput) -> Rows:
    """Return the smallest of all bounds; no series without one."""
    concurrency = inputs.snapshot.concurrency
    if concurrency is None:
        return []
    limit = min(
        concurrency.limit, concurrency.memory_cap, inputs.settings.concurrency.inflight_max or math.inf
    )
    return [] if math.isinf(limit) else [((), limit)]


def _service_rate(inputs: MetricsInput) -> Rows:
    concurrency = inputs.snapshot.concurrency
    return [] if concurrency is None or concurrency.service_rps is None else [((), concurrency.service_rps)]


def _pressure(inputs: MetricsInput) -> Rows:
    return [((term,), ratio) for term, ratio in inputs.snapshot.pressure.items()]


def _rate_limit(inputs: MetricsInput) -> Rows:
    return [((priority.label,), rate) for priority, rate in inputs.snapshot.rate_limit_rps.items()]


def _tokens(inputs: MetricsInput) -> Rows:
    return [((priority.label,), tokens) for priority, tokens in inputs.snapshot.tokens.items()]


def _recorded(inputs: MetricsInput) -> Rows:
    counts = inputs.recorder
    return [] if counts is None else [(("written",), counts.written), (("dropped",), counts.dropped)]


def _build(_: MetricsInput) -> Rows:
    return [((__version__,), 1)]


METRICS: Final[tuple[MetricSpec | HistogramSpec, ...]] = (
    MetricSpec(
        PREFIX + "requests",
        "counter",
        ("priority", "decision", "reason"),
        "Decisions: admitted, limited (429, 413: the caller's own limit), shed (503: our load), "
        "or exempt, which has no priority.",
        _requests,
    ),
    HistogramSpec(
        PREFIX + "request_duration_seconds",
        ("priority", "decision"),
        "Time from arrival to the last byte of the answer, waiting included. Not of clients that left.",
        _durations,
    ),
    MetricSpec(
        PREFIX + "active_requests", "gauge", ("priority",), "Requests admitted and not yet ended.", _active
    ),
    MetricSpec(
        PREFIX + "queued_requests",
        "gauge",
        ("priority",),
        "Requests that wait in the queue.",
        _queued,
    ),
    HistogramSpec(
        PREFIX + "queue_time_seconds",
        ("priority",),
        "Time in the queue of requests that had to wait, whether or not they were admitted.",
        _queue_time,
    ),
    MetricSpec(
        PREFIX + "outcomes",
        "counter",
        ("priority", "outcome"),
        "How admitted requests ended: success, failure, or neutral where the client left.",
        _outcomes,
    ),
    MetricSpec(
        PREFIX + "would_reject",
        "counter",
        ("priority", "reason"),
        "Requests that were admitted only because DRY_RUN is on.",
        _would_reject,
    ),
    MetricSpec(
        PREFIX + "oddities",
        "counter",
        ("kind",),
        f"Oddities that were dealt with: {', '.join(ODDITIES)}.",
        _oddities,
    ),
    MetricSpec(
        PREFIX + "factor_ratio",
        "gauge",
        (),
        "Share of the nominal rates admitted now, 0 to 1; 0 rejects all new requests.",
        _factor,
    ),
    MetricSpec(
        PREFIX + "tier",
        "stateset",
        ("tier",),
        "Step of the tier table in force, in percent of the nominal rates.",
        _tier,
    ),
    MetricSpec(
        PREFIX + "table_factor_ratio",
        "gauge",
        (),
        "Factor of the tier table taken literally, 0 to 1, whether or not it is applied.",
        _table_factor,
    ),
    MetricSpec(
        PREFIX + "table_armed",
        "gauge",
        (),
        "1 while the tier table may act; under the policy adaptive only while requests wait.",
        _table_armed,
    ),
    MetricSpec(
        PREFIX + "inflight_requests",
        "gauge",
        (),
        "Requests in flight, including those just admitted from the queue.",
        _inflight,
    ),
    MetricSpec(
        PREFIX + "inflight_limit",
        "gauge",
        (),
        "Concurrency limit now: the smallest of the learned limit, the memory cap and INFLIGHT_MAX.",
        _inflight_limit,
    ),
    MetricSpec(
        PREFIX + "service_rate",
        "gauge",
        (),
        "Requests that the service finishes per second; a lower bound until its limit was once reached.",
        _service_rate,
    ),
    MetricSpec(
        PREFIX + "pressure_ratio",
        "gauge",
        ("term",),
        "Load over its target, by term, 1 at the target and more above it: demand (over the service rate), "
        "and of gpu_pressure_terms those that are known. The number to scale by.",
        _pressure,
    ),
    MetricSpec(
        PREFIX + "rate_limit",
        "gauge",
        ("priority",),
        "Tokens refilled per second now; in a fleet for all processes, while its store is unavailable the "
        "part of this one.",
        _rate_limit,
    ),
    MetricSpec(PREFIX + "tokens", "gauge", ("priority",), "Tokens left in the bucket.", _tokens),
    *LIMIT_METRICS,
    *QUOTA_METRICS,
    *STORE_METRICS,
    *GUARD_METRICS,
    *GPU_METRICS,
    *ENGINE_METRICS,
    *SOURCE_METRICS,
    MetricSpec(
        PREFIX + "recorder_records",
        "counter",
        ("result",),
        "Requests that the recorder of traffic has written, and those that it had to drop.",
        _recorded,
    ),
    MetricSpec(PREFIX + "build_info", "info", ("version",), "The version of this library.", _build),
)
"""Every metric, in the order of the page."""
