"""The table of all metrics: names, labels, and the sources of their values.

`METRICS` is the only place that names a metric; the collector, the endpoint and the page of the
documentation are made from it. An unknown value has no series: it is absent, never 0.
Labels are closed sets from code, settings or the driver, never data that a client has sent.
"""

from __future__ import annotations

import math
from typing import Final

from autoglm_throttle.model import Priority, Telemetry
from autoglm_throttle.observe.engine_metrics import ENGINE_METRICS
from autoglm_throttle.observe.gpu_metrics import GPU_METRICS
from autoglm_throttle.observe.guard_metrics import GUARD_METRICS
from autoglm_throttle.observe.metric import (
    PREFIX,
    Histograms,
    HistogramSpec,
    MetricSpec,
    Picture,
    Rows,
)
from autoglm_throttle.observe.quota_metrics import QUOTA_METRICS
from autoglm_throttle.observe.source_metrics import SOURCE_METRICS
from autoglm_throttle.observe.store_metrics import STORE_METRICS
from autoglm_throttle.snapshot import HINTS
from autoglm_throttle.version import __version__

_TELLS_NOTHING: Final = frozenset({Telemetry.STARTING, Telemetry.BLIND, Telemetry.NONE})
"""States without a sample for the table."""


def _requests(picture: Picture) -> Rows:
    for (priority, decision, reason), count in picture.snapshot.requests.items():
        yield (priority.label, decision, reason.value), count
    yield ("none", "exempt", "ok"), picture.snapshot.exempt


def _durations(picture: Picture) -> Histograms:
    return [((priority.label, "admitted"), row) for priority, row in picture.snapshot.durations.items()]


def _active(picture: Picture) -> Rows:
    return [((priority.label,), count) for priority, count in picture.snapshot.active.items()]


def _queued(picture: Picture) -> Rows:
    gate = picture.snapshot.gate
    return [] if gate is None else [((p.label,), n) for p, n in zip(Priority, gate.waiting, strict=True)]


def _queue_time(picture: Picture) -> Histograms:
    return [((priority.label,), row) for priority, row in picture.snapshot.queue_time.items()]


def _outcomes(picture: Picture) -> Rows:
    counts = picture.snapshot.outcomes.items()
    return [((priority.label, outcome.value), count) for (priority, outcome), count in counts]


def _would_refuse(picture: Picture) -> Rows:
    counts = picture.snapshot.would_refuse.items()
    return [((priority.label, reason.value), count) for (priority, reason), count in counts]


def _hints(picture: Picture) -> Rows:
    return [((name,), count) for name, count in picture.snapshot.hints.items()]


def _factor(picture: Picture) -> Rows:
    return [((), picture.snapshot.regime.factor)]


def _tier(picture: Picture) -> Rows:
    """One state per step of the table; on the way up the last step reached is the one in force."""
    steps = sorted({1.0, *(factor for _, factor in picture.settings.tiers)})
    tier = picture.snapshot.regime.tier
    in_force = max((step for step in steps if step <= tier), default=steps[0])
    return [((f"{step * 100:g}",), float(step == in_force)) for step in reversed(steps)]


def _table_factor(picture: Picture) -> Rows:
    regime = picture.snapshot.regime
    return [] if regime.telemetry in _TELLS_NOTHING else [((), regime.table_factor)]


def _table_armed(picture: Picture) -> Rows:
    return [((), float(picture.snapshot.regime.armed))]


def _inflight(picture: Picture) -> Rows:
    gate = picture.snapshot.gate
    return [] if gate is None else [((), gate.in_flight)]


def _inflight_limit(picture: Picture) -> Rows:
    """Return the smallest of all bounds; no series without one."""
    gate = picture.snapshot.gate
    if gate is None:
        return []
    limit = min(gate.limit, gate.memory_cap, picture.settings.inflight_max or math.inf)
    return [] if math.isinf(limit) else [((), limit)]


def _service_rate(picture: Picture) -> Rows:
    gate = picture.snapshot.gate
    return [] if gate is None or gate.service_rps is None else [((), gate.service_rps)]


def _pressure(picture: Picture) -> Rows:
    return [((term,), ratio) for term, ratio in picture.snapshot.pressure.items()]


def _rate_limit(picture: Picture) -> Rows:
    return [((priority.label,), rate) for priority, rate in picture.snapshot.rate_limit_rps.items()]


def _tokens(picture: Picture) -> Rows:
    return [((priority.label,), tokens) for priority, tokens in picture.snapshot.tokens.items()]


def _recorded(picture: Picture) -> Rows:
    counts = picture.recorder
    return [] if counts is None else [(("written",), counts.written), (("dropped",), counts.dropped)]


def _build(_: Picture) -> Rows:
    return [((__version__,), 1)]


METRICS: Final[tuple[MetricSpec | HistogramSpec, ...]] = (
    MetricSpec(
        PREFIX + "requests",
        "counter",
        ("priority", "decision", "reason"),
        "Decisions: admitted, limited (429, 413: the caller's own limit), rejected (503: our load), "
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
        "Requests that stand in line for their turn.",
        _queued,
    ),
    HistogramSpec(
        PREFIX + "queue_time_seconds",
        ("priority",),
        "Time in line of requests that had to wait, whether or not their turn came.",
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
        PREFIX + "would_refuse",
        "counter",
        ("priority", "reason"),
        "Requests that were admitted only because DRY_RUN is on.",
        _would_refuse,
    ),
    MetricSpec(
        PREFIX + "hints",
        "counter",
        ("hint",),
        f"Oddities that were dealt with: {', '.join(HINTS)}.",
        _hints,
    ),
    MetricSpec(
        PREFIX + "factor_ratio",
        "gauge",
        (),
        "Share of the nominal rates that is let in now, 0 to 1; 0 refuses all new requests.",
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
        "Requests that hold a place in the service, those included whose turn has just come.",
        _inflight,
    ),
    MetricSpec(
        PREFIX + "inflight_limit",
        "gauge",
        (),
        "Requests that may be in flight now: what the gate has learned, memory and INFLIGHT_MAX considered.",
        _inflight_limit,
    ),
    MetricSpec(
        PREFIX + "service_rate",
        "gauge",
        (),
        "Requests that the service finishes per second; until its limit was once reached, at least so many.",
        _service_rate,
    ),
    MetricSpec(
        PREFIX + "pressure_ratio",
        "gauge",
        ("term",),
        "Load over its target, by term, 1 at the target and more above it: demand (over the service rate), "
        "and of GPU_PRESSURE_TERMS those that are known. The number to scale by.",
        _pressure,
    ),
    MetricSpec(
        PREFIX + "rate_limit",
        "gauge",
        ("priority",),
        "Tokens refilled per second now; in a fleet for all its processes, and while its store is away the "
        "part of this one.",
        _rate_limit,
    ),
    MetricSpec(PREFIX + "tokens", "gauge", ("priority",), "Tokens left in the bucket.", _tokens),
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
