"""Metrics of the telemetry itself: its age, and the state of each source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

from autoglm_throttle.gpu.monitor import SourceState, SourceView
from autoglm_throttle.observe.metric import PREFIX, MetricsInput, MetricSpec, Rows
from autoglm_throttle.types import TelemetryState

STATES: Final[tuple[str, ...]] = get_args(SourceState)


def _telemetry(inputs: MetricsInput) -> Rows:
    now = inputs.snapshot.control.telemetry
    return [((state.value,), float(state is now)) for state in TelemetryState]


def _last_sample(inputs: MetricsInput) -> Rows:
    at = inputs.snapshot.last_sample_wall_s
    return [] if at is None else [((), at)]


def _errors(inputs: MetricsInput) -> Rows:
    return [((), inputs.snapshot.controller_errors)]


def _each(read: Callable[[SourceView], float]) -> Callable[[MetricsInput], Rows]:
    """Make a series for each source."""

    def rows(inputs: MetricsInput) -> Rows:
        return [((source.name,), read(source)) for source in inputs.snapshot.sources]

    return rows


def _state(inputs: MetricsInput) -> Rows:
    for source in inputs.snapshot.sources:
        for state in STATES:
            yield (source.name, state), float(state == source.state)


def _last_read(inputs: MetricsInput) -> Rows:
    wall_s = inputs.snapshot.taken_at_wall_s
    for source in inputs.snapshot.sources:
        if source.age_s is not None:
            yield (source.name,), wall_s - source.age_s


def _counter(name: str, read: Callable[[SourceView], float], text: str) -> MetricSpec:
    return MetricSpec(PREFIX + name, "counter", ("source",), text, _each(read))


SOURCE_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        PREFIX + "telemetry_state",
        "stateset",
        ("state",),
        "How far the newest GPU sample can be believed; none means that no GPU is expected.",
        _telemetry,
    ),
    MetricSpec(
        PREFIX + "controller_last_sample_timestamp_seconds",
        "gauge",
        (),
        "Unix time of the newest GPU sample; the reader computes its age.",
        _last_sample,
    ),
    MetricSpec(
        PREFIX + "controller_errors",
        "counter",
        (),
        "GPU reads that failed or were overdue, threads that crashed, and values that cannot be.",
        _errors,
    ),
    MetricSpec(
        PREFIX + "gpu_source_state",
        "stateset",
        ("source", "state"),
        f"State of the reads of each source: {', '.join(STATES)}.",
        _state,
    ),
    MetricSpec(
        PREFIX + "gpu_source_last_read_timestamp_seconds",
        "gauge",
        ("source",),
        "Unix time at which the source was last read; its data may be older.",
        _last_read,
    ),
    MetricSpec(
        PREFIX + "gpu_source_interval_seconds",
        "gauge",
        ("source",),
        "Time promised between two reads; it changes with SAMPLE_ADAPTIVE.",
        _each(lambda source: source.interval_s),
    ),
    _counter("gpu_source_failures", lambda source: source.failures, "Reads that gave nothing."),
    _counter("gpu_source_overruns", lambda source: source.overruns, "Reads that took longer than they may."),
    _counter(
        "gpu_source_implausible",
        lambda source: source.implausible,
        "Values that cannot be and were taken as not known.",
    ),
    _counter(
        "gpu_source_crashes",
        lambda source: source.crashes,
        "Times that its thread crashed and was to be started anew.",
    ),
)
"""In the order of the page."""
