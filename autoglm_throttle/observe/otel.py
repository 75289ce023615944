"""Exports the metrics by the API of OpenTelemetry: observable instruments over the table of metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec, Labels, MetricsInput, Rows
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.settings import ConfigError, MetricsExport, Problem
from autoglm_throttle.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from autoglm_throttle.observe.metric import RecorderProtocol
    from autoglm_throttle.throttle import Throttle

# Unit by the end of the name, which the name then leaves out: an exporter to Prometheus appends it.
UNITS: Final = {
    "_seconds": "s",
    "_bytes": "By",
    "_ratio": "1",
    "_watts": "W",
    "_joules": "J",
    "_celsius": "Cel",
    "_hertz": "Hz",
}
KEEP_S: Final = 0.5  # Time for which one snapshot serves: a collection reads every instrument
EDGES: Final = (*(f"{edge:g}" for edge in DURATION_BUCKETS_S), "+Inf")

Callback = Callable[["CallbackOptions"], "Iterable[Observation]"]


class _Source:
    """The input of one collection, whose instruments are read one after another."""

    def __init__(self, throttle: Throttle, recorder: RecorderProtocol | None) -> None:
        self._throttle, self._recorder = throttle, recorder
        self._lock = threading.Lock()  # two readers of the SDK may collect at once
        self._inputs: MetricsInput | None = None
        self._read_s = 0.0

    def inputs(self) -> MetricsInput:
        """Return the newest snapshot, at most half a second old."""
        with self._lock:
            now = time.monotonic()
            if self._inputs is None or now - self._read_s > KEEP_S:
                timer = history_timer(self._throttle)
                timer.start()
                self._inputs, self._read_s = timer.inputs(self._throttle, self._recorder), now
            return self._inputs


def export_to_otel(
    throttle: Throttle,
    recorder: RecorderProtocol | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Make an observable instrument for each metric; nothing is recorded per request.

    ``autoglm_throttle_queue_time_seconds`` is ``autoglm_throttle.queue_time`` with the unit ``s``.
    The API has no observable histogram: one becomes the counters ``.bucket``, with the
    attribute ``le``, and ``.sum``.
    With ``METRICS=off`` no instrument is made. Do not export to Prometheus in both ways: each name would
    come twice.

    Args:
        throttle: source of the counts; it lives as long as the provider.
        recorder: a ``traffic.record.Recorder`` as a further source; None: there is none.
        meter_provider: None: the global one.

    Raises:
        ConfigError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        text = "opentelemetry-api is not installed"
        raise ConfigError([Problem("METRICS", text, how_to_install("otel"))]) from None
    if throttle.settings.observe.metrics is MetricsExport.OFF:
        return
    meter, source = get_meter("autoglm_throttle", __version__, meter_provider), _Source(throttle, recorder)
    for spec in METRICS:
        name, unit = otel_name(spec.name)
        if isinstance(spec, HistogramSpec):
            for part, rows, labels, of in (
                ("bucket", _buckets, (*spec.labels, "le"), "1"),
                ("sum", _sums, spec.labels, unit),
            ):
                callback = _callback(source, partial(rows, spec), labels)
                meter.create_observable_counter(f"{name}.{part}", [callback], of, spec.help)
        else:
            create = (
                meter.create_observable_counter if spec.kind == "counter" else meter.create_observable_gauge
            )
            create(name, [_callback(source, spec.read, spec.labels)], unit, spec.help)


def otel_name(name: str) -> tuple[str, str]:
    """Return the name and the unit (UCUM) of an instrument."""
    short = name.removeprefix(PREFIX)
    if short.endswith("_bytes_per_second"):  # without these words it may be the name of a counter of bytes
        return f"autoglm_throttle.{short}", "By/s"
    end = next((end for end in UNITS if short.endswith(end)), "")
    return f"autoglm_throttle.{short.removesuffix(end)}", UNITS.get(end, "1")


def _callback(source: _Source, read: Callable[[MetricsInput], Rows], names: Sequence[str]) -> Callback:
    from opentelemetry.metrics import Observation

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for labels, value in read(source.inputs()):
            yield Observation(value, dict(zip(names, labels, strict=True)))

    return observe


def _buckets(spec: HistogramSpec, inputs: MetricsInput) -> Iterable[tuple[Labels, float]]:
    for labels, durations in spec.read(inputs):
        for edge, count in zip(EDGES, accumulate(durations.counts), strict=True):
            yield (*labels, edge), count


def _sums(spec: HistogramSpec, inputs: MetricsInput) -> Iterable[tuple[Labels, float]]:
    for labels, durations in spec.read(inputs):
        yield labels, durations.total_s
