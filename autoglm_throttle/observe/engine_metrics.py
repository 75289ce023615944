"""Metrics of the inference engines, as the engines report them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from autoglm_throttle.observe.device_label import labelled
from autoglm_throttle.observe.gpu_metrics import reported_by
from autoglm_throttle.observe.metric import PREFIX, Labels, MetricsInput, MetricSpec, Rows
from autoglm_throttle.types import GpuSample


def _each(read: Callable[[GpuSample], float | None]) -> Callable[[MetricsInput], Rows]:
    """Make a series for each engine that reports the quantity."""

    def rows(inputs: MetricsInput) -> Iterator[tuple[Labels, float]]:
        for label, engine in reported_by(inputs, engines=True):
            value = read(engine)
            if value is not None:
                yield (label,), value

    return rows


def _info(inputs: MetricsInput) -> Rows:
    for label, device in labelled(inputs.snapshot.devices):
        if device.kind == "engine":
            yield (label, device.name), 1


ENGINE_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        PREFIX + "engine_running_requests",
        "gauge",
        ("engine",),
        "Requests that the engine works on.",
        _each(lambda engine: engine.running),
    ),
    MetricSpec(
        PREFIX + "engine_queued_requests",
        "gauge",
        ("engine",),
        "Requests that wait inside the engine.",
        _each(lambda engine: engine.queued),
    ),
    MetricSpec(
        PREFIX + "engine_kv_used_ratio",
        "gauge",
        ("engine",),
        "Fill of its key-value cache, 0 to 1; the fullest of several.",
        _each(lambda engine: engine.kv_used_ratio),
    ),
    MetricSpec(
        PREFIX + "engine_tokens",
        "counter",
        ("engine",),
        "Tokens read and written.",
        _each(lambda engine: engine.tokens_total),
    ),
    MetricSpec(
        PREFIX + "engine_preemptions",
        "counter",
        ("engine",),
        "Requests that the engine put off because its cache was full.",
        _each(lambda engine: engine.preemptions_total),
    ),
    MetricSpec(
        PREFIX + "engine_info",
        "info",
        ("engine", "model"),
        "Model that an engine serves, where it reports one.",
        _info,
    ),
)
"""In the order of the page."""
