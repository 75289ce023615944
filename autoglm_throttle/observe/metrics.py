"""The table of all metrics: names, labels, and the sources of their values.

`METRICS` is the only place that names a metric; the collector, the endpoint and the page of the
documentation are made from it. An unknown value has no series: it is absent, never 0.
Labels are closed sets from code, settings or the driver, never data that a client has sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from autoglm_throttle.admission.counters import ODDITIES
from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.observe.gpu_metrics import ENGINE_METRICS, GPU_METRICS
from autoglm_throttle.observe.guard_metrics import GUARD_METRICS
from autoglm_throttle.observe.limit_metrics import LIMIT_METRICS, QUOTA_METRICS
from autoglm_throttle.observe.metric import (
    Histograms,
    HistogramSpec,
    MetricsInput,
    MetricSpec,
    ReadRows,
    Rows,
    counter,
    gauge,
    histogram,
    info,
    one,
    stateset,
)
from autoglm_throttle.observe.store_metrics import SOURCE_METRICS, STORE_METRICS
from autoglm_throttle.types import ConcurrencyView, ControlState, Priority, TelemetryState
from autoglm_throttle.version import __version__

# States without a sample for the table.
_NO_SAMPLE: Final = frozenset({TelemetryState.STARTING, TelemetryState.BLIND, TelemetryState.NONE})


def _requests(inputs: MetricsInput) -> Rows:
    for (priority, decision, reason), count in inputs.snapshot.requests.items():
        yield (priority.label, decision, reason.value), count
    yield ("none", "exempt", "ok"), inputs.snapshot.exempt


def _durations(inputs: MetricsInput) -> Histograms:
    return [((priority.label, "admitted"), row) for priority, row in inputs.snapshot.durations.items()]


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


def _tier(inputs: MetricsInput) -> Rows:
    """One state per step of the table; on the way up the last step reached is the one in force."""
    steps = sorted({1.0, *(factor for _, factor in inputs.settings.control.tiers)})
    tier = inputs.snapshot.control.tier
    in_force = max((step for step in steps if step <= tier), default=steps[0])
    return [((f"{step * 100:g}",), float(step == in_force)) for step in reversed(steps)]


def _pressure(inputs: MetricsInput) -> Rows:
    return [((term,), ratio) for term, ratio in inputs.snapshot.pressure.items()]


def _recorded(inputs: MetricsInput) -> Rows:
    counts = inputs.recorder
    return [] if counts is None else [(("written",), counts.written), (("dropped",), counts.dropped)]


def _by_priority(find: Callable[[Snapshot], Mapping[Priority, float]]) -> ReadRows:
    """Make a series for each priority."""

    def rows(inputs: MetricsInput) -> Rows:
        return [((priority.label,), value) for priority, value in find(inputs.snapshot).items()]

    return rows


def _control(snapshot: Snapshot) -> ControlState:
    return snapshot.control


def _concurrency(snapshot: Snapshot) -> ConcurrencyView | None:
    return snapshot.concurrency


def _inflight_limit(inputs: MetricsInput) -> Rows:
    """Return the smallest of all bounds; no series without one."""
    view, most = inputs.snapshot.concurrency, inputs.settings.concurrency.inflight_max or math.inf
    limit = math.inf if view is None else min(view.limit, view.memory_cap, most)
    return [] if math.isinf(limit) else [((), limit)]


def _table_factor(control: ControlState) -> float | None:
    return None if control.telemetry in _NO_SAMPLE else control.table_factor


METRICS: Final[tuple[MetricSpec | HistogramSpec, ...]] = (  # Every metric, in the order of the page
    counter(
        "requests",
        "Decisions: admitted, limited (429, 413: the caller's own limit), shed (503: our load), "
        "or exempt, which has no priority.",
        _requests,
        "priority decision reason",
    ),
    histogram(
        "request_duration_seconds",
        "Time from arrival to the last byte of the answer, waiting included. Not of clients that left.",
        _durations,
        "priority decision",
    ),
    gauge(
        "active_requests",
        "Requests admitted and not yet ended.",
        _by_priority(lambda snapshot: snapshot.active),
        "priority",
    ),
    gauge("queued_requests", "Requests that wait in the queue.", _queued, "priority"),
    histogram(
        "queue_time_seconds",
        "Time in the queue of requests that had to wait, whether or not they were admitted.",
        _queue_time,
        "priority",
    ),
    counter(
        "outcomes",
        "How admitted requests ended: success, failure, or neutral where the client left.",
        _outcomes,
        "priority outcome",
    ),
    counter(
        "would_reject",
        "Requests that were admitted only because DRY_RUN is on.",
        _would_reject,
        "priority reason",
    ),
    counter("oddities", f"Oddities that were dealt with: {', '.join(ODDITIES)}.", _oddities, "kind"),
    gauge(
        "factor_ratio",
        "Share of the nominal rates admitted now, 0 to 1; 0 rejects all new requests.",
        one(_control, lambda control: control.factor),
    ),
    stateset("tier", "Step of the tier table in force, in percent of the nominal rates.", _tier, "tier"),
    gauge(
        "table_factor_ratio",
        "Factor of the tier table taken literally, 0 to 1, whether or not it is applied.",
        one(_control, _table_factor),
    ),
    gauge(
        "table_armed",
        "1 while the tier table may act; under the policy adaptive only while requests wait.",
        one(_control, lambda control: control.armed),
    ),
    gauge(
        "inflight_requests",
        "Requests in flight, including those just admitted from the queue.",
        one(_concurrency, lambda view: view.in_flight),
    ),
    gauge(
        "inflight_limit",
        "Concurrency limit now: the smallest of the learned limit, the memory cap and INFLIGHT_MAX.",
        _inflight_limit,
    ),
    gauge(
        "service_rate",
        "Requests that the service finishes per second; a lower bound until its limit was once reached.",
        one(_concurrency, lambda view: view.service_rps),
    ),
    gauge(
        "pressure_ratio",
        "Load over its target, by term, 1 at the target and more above it: demand (over the service rate), "
        "and of gpu_pressure_terms those that are known. The number to scale by.",
        _pressure,
        "term",
    ),
    gauge(
        "rate_limit",
        "Tokens refilled per second now; in a fleet for all processes, while its store is unavailable the "
        "part of this one.",
        _by_priority(lambda snapshot: snapshot.rate_limit_rps),
        "priority",
    ),
    gauge("tokens", "Tokens left in the bucket.", _by_priority(lambda snapshot: snapshot.tokens), "priority"),
    *LIMIT_METRICS,
    *QUOTA_METRICS,
    *STORE_METRICS,
    *GUARD_METRICS,
    *GPU_METRICS,
    *ENGINE_METRICS,
    *SOURCE_METRICS,
    counter(
        "recorder_records",
        "Requests that the recorder of traffic has written, and those that it had to drop.",
        _recorded,
        "result",
    ),
    info("build_info", "The version of this library.", lambda _: [((__version__,), 1)], "version"),
)
