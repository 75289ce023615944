"""Exports the metrics to prometheus-client. Loaded only if its package is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S, DurationHistogram
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec, MetricsInput, MetricSpec, RecorderProtocol
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.siblings import Counts, Labels
from autoglm_throttle.observe.timer import SHARED, history_timer
from autoglm_throttle.throttle import Throttle

EDGES: Final = (*(repr(float(edge)) for edge in DURATION_BUCKETS_S), "+Inf")


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families at each scrape, with the counts of a recorder of traffic.

    Args:
        throttle: source of the counts.
        recorder: as of `observe.collector`.
        all_workers: whether counts are those of all workers of the service, as of the newest step.
    """

    def __init__(
        self, throttle: Throttle, recorder: RecorderProtocol | None = None, *, all_workers: bool = False
    ) -> None:
        self._throttle = throttle
        self._recorder = recorder
        self._all_workers = all_workers

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values, so that registering one reads nothing."""
        return [_family(spec, None) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their current values."""
        timer = history_timer(self._throttle)
        timer.start()  # from the first scrape on: without one nothing is recorded
        inputs = timer.inputs(self._throttle, self._recorder)
        siblings = timer.siblings if self._all_workers else None
        # Before the first step they have no series: the counts of one worker would look like a restart later.
        totals = {} if siblings is None else {name: siblings.totals.get(name, {}) for name in SHARED}
        for spec in METRICS:
            yield _family(spec, inputs, totals.get(spec.name.removeprefix(PREFIX)))


def _family(
    spec: MetricSpec | HistogramSpec,
    inputs: MetricsInput | None,
    total: Mapping[Labels, Counts] | None = None,
) -> Metric:
    if isinstance(spec, HistogramSpec):
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, (*counts, total_s) in () if total is None else total.items():
            histogram.add_metric(labels, list(zip(EDGES, accumulate(counts), strict=True)), total_s)
        for labels, one in () if inputs is None or total is not None else spec.read(inputs):
            histogram.add_metric(labels, _buckets(one), one.total_s)
        return histogram
    family_type = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = family_type(spec.name, spec.help, labels=spec.labels)
    rows = () if inputs is None else spec.read(inputs)
    for labels, value in rows if total is None else ((each, count) for each, (count,) in total.items()):
        family.add_metric(labels, value)
    return family


def _buckets(durations: DurationHistogram) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Return edge, cumulative count and, if a traced request is known, the exemplar of each bucket."""
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for at, (edge, count) in enumerate(zip(EDGES, accumulate(durations.counts), strict=True)):
        known = durations.exemplars.get(at)
        if known is None:
            buckets.append((edge, count))
        else:
            labels = {"trace_id": known.trace_id, "span_id": known.span_id}
            buckets.append((edge, count, Exemplar(labels, known.duration_s, known.wall_s)))
    return buckets
