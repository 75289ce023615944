"""Exports the metrics to prometheus-client. Loaded only if its package is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.metric import HistogramSpec, MetricsInput, MetricSpec, RecorderProtocol
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.throttle import Throttle

EDGES: Final = (*(repr(float(edge)) for edge in DURATION_BUCKETS_S), "+Inf")


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families at each scrape, with the counts of a recorder of traffic."""

    def __init__(self, throttle: Throttle, recorder: RecorderProtocol | None = None) -> None:
        self._throttle = throttle
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values, so that registering one reads nothing."""
        return [_family(spec, None) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their current values."""
        timer = history_timer(self._throttle)
        timer.start()  # from the first scrape on: without one nothing is recorded
        inputs = timer.inputs(self._throttle, self._recorder)
        for spec in METRICS:
            yield _family(spec, inputs)


def _family(spec: MetricSpec | HistogramSpec, inputs: MetricsInput | None) -> Metric:
    if isinstance(spec, HistogramSpec):
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, counts in () if inputs is None else spec.read(inputs):
            buckets = list(zip(EDGES, accumulate(counts.counts), strict=True))
            histogram.add_metric(labels, buckets, counts.total_s)
        return histogram
    family_type = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = family_type(spec.name, spec.help, labels=spec.labels)
    for labels, value in () if inputs is None else spec.read(inputs):
        family.add_metric(labels, value)
    return family
