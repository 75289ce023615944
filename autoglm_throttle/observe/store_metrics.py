"""Metrics of the shared state, of a fleet, and of the telemetry sources. Absent where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, get_args

from autoglm_throttle.admission.snapshot import Snapshot
from autoglm_throttle.gpu.monitor import SourceState, SourceView
from autoglm_throttle.observe.metric import (
    MetricsInput,
    MetricSpec,
    Rows,
    counter,
    each,
    gauge,
    one,
    stateset,
)
from autoglm_throttle.store.fleet import FleetView
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.types import TelemetryState


def _store(snapshot: Snapshot) -> StoreView | None:
    return snapshot.store


def _fleet(snapshot: Snapshot) -> FleetView | None:
    return snapshot.fleet


def _fallbacks(inputs: MetricsInput) -> Rows:
    store = inputs.snapshot.store
    return [] if store is None else [((error_kind.value,), n) for error_kind, n in store.fallbacks.items()]


STORE_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    gauge(
        "redis_up",
        "1 while the store of REDIS_URL decides, 0 while each process decides for itself.",
        one(_store, lambda store: float(store.state is HealthState.UP)),
    ),
    counter(
        "redis_fallback",
        "Decisions on user limits taken without the store, by the error of the store.",
        _fallbacks,
        "reason",
    ),
    counter(
        "redis_decisions", "Decisions requested from the store.", one(_store, lambda store: store.stats.sent)
    ),
    counter(
        "redis_round_trips",
        "Calls that carried them; the quotient is the mean size of a batch.",
        one(_store, lambda store: store.stats.calls),
    ),
    counter(
        "redis_deny_cache_hits",
        "Rejections answered from the local deny cache, without a call of the store.",
        one(_store, lambda store: store.deny_cache_hits),
    ),
    counter(
        "redis_late_replies",
        "Replies that came after their decision had been taken without them, or after its caller had left.",
        one(_store, lambda store: store.stats.late),
    ),
    gauge(
        "fleet_members",
        "Live processes that share the priority rates, as known to this one.",
        one(_fleet, lambda fleet: fleet.members),
    ),
    gauge(
        "fleet_up",
        "1 while rates are leased, 0 while this process uses its own part of them.",
        one(_fleet, lambda fleet: float(fleet.up)),
    ),
    counter(
        "fleet_round_trips", "Calls for leases and signs of life.", one(_fleet, lambda fleet: fleet.calls)
    ),
    counter("fleet_failures", "Those that were not answered.", one(_fleet, lambda fleet: fleet.failures)),
)


STATES: Final[tuple[str, ...]] = get_args(SourceState)


def _telemetry(inputs: MetricsInput) -> Rows:
    now = inputs.snapshot.control.telemetry
    return [((state.value,), float(state is now)) for state in TelemetryState]


def _last_sample(inputs: MetricsInput) -> Rows:
    at = inputs.snapshot.last_sample_wall_s
    return [] if at is None else [((), at)]


def _errors(inputs: MetricsInput) -> Rows:
    return [((), inputs.snapshot.controller_errors)]


def _sources(inputs: MetricsInput) -> Iterable[tuple[str, SourceView]]:
    return ((source.name, source) for source in inputs.snapshot.sources)


def _state(inputs: MetricsInput) -> Rows:
    for source in inputs.snapshot.sources:
        for state in STATES:
            yield (source.name, state), float(state == source.state)


def _last_read(inputs: MetricsInput) -> Rows:
    wall_s = inputs.snapshot.taken_at_wall_s
    for source in inputs.snapshot.sources:
        if source.age_s is not None:
            yield (source.name,), wall_s - source.age_s


SOURCE_METRICS: Final[tuple[MetricSpec, ...]] = (  # In the order of the page
    stateset(
        "telemetry_state",
        "How far the newest GPU sample can be believed; none means that no GPU is expected.",
        _telemetry,
        "state",
    ),
    gauge(
        "controller_last_sample_timestamp_seconds",
        "Unix time of the newest GPU sample; the reader computes its age.",
        _last_sample,
    ),
    counter(
        "controller_errors",
        "GPU reads that failed or were overdue, threads that crashed, and values that cannot be.",
        _errors,
    ),
    stateset(
        "gpu_source_state", f"State of the reads of each source: {', '.join(STATES)}.", _state, "source state"
    ),
    gauge(
        "gpu_source_last_read_timestamp_seconds",
        "Unix time at which the source was last read; its data may be older.",
        _last_read,
        "source",
    ),
    gauge(
        "gpu_source_interval_seconds",
        "Time promised between two reads; it changes with SAMPLE_ADAPTIVE.",
        each(_sources, lambda source: source.interval_s),
        "source",
    ),
    counter(
        "gpu_source_failures",
        "Reads that gave nothing.",
        each(_sources, lambda source: source.failures),
        "source",
    ),
    counter(
        "gpu_source_overruns",
        "Reads that took longer than they may.",
        each(_sources, lambda source: source.overruns),
        "source",
    ),
    counter(
        "gpu_source_implausible",
        "Values that cannot be and were taken as not known.",
        each(_sources, lambda source: source.implausible),
        "source",
    ),
    counter(
        "gpu_source_crashes",
        "Times that its thread crashed and was to be started anew.",
        each(_sources, lambda source: source.crashes),
        "source",
    ),
)
