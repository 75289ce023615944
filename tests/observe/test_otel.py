"""The metrics reach the SDK of OpenTelemetry with the values of a scrape."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, NumberDataPoint, Sum

from autoglm_throttle import ConfigError, Demand, Permit, Priority
from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.limiting.token_limits import TokenCounts
from autoglm_throttle.observe import METRICS, export_to_otel, host, otel
from autoglm_throttle.observe.metric import HistogramSpec
from autoglm_throttle.observe.otel import EDGES, otel_name
from autoglm_throttle.store.fleet import FleetView
from autoglm_throttle.testing import ManualClock, ManualThrottle, throttle_for_tests
from tests.observe.scraping import GUARDS, HOST, QUOTA, STORE, knowing_all, loaded, scraped, with_recent


def collected(throttle: ManualThrottle, recorder: object = None) -> dict[str, Metric]:
    """Collect once, by a provider of its own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    export_to_otel(throttle, recorder, provider)  # type: ignore[arg-type]
    data = reader.get_metrics_data()
    provider.shutdown()
    found = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric for metric in found}


Series = frozenset[tuple[str, object]]


def values(metric: Metric) -> dict[Series, float]:
    points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
    return {frozenset((point.attributes or {}).items()): point.value for point in points}


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> ManualThrottle:
    """A throttle that has a series of each metric."""
    monkeypatch.setattr(host, "_monitor", lambda: SimpleNamespace(current=lambda: HOST))
    clock = ManualClock()
    how = {"clock": clock, "gpu": knowing_all(clock)}
    stored = {"store": STORE, "fleet": FleetView(4, True, 1, 0)}
    throttle = loaded(how, quota=QUOTA, guards=GUARDS, token_counts=TokenCounts(), **stored)
    throttle.tick()
    with_recent(throttle)
    return throttle


def test_each_metric_has_the_series_and_values_of_a_scrape(everything: ManualThrottle) -> None:
    recorder = SimpleNamespace(counts=(3, 1, ""))
    metrics = collected(everything, recorder)
    families = scraped(everything, recorder)
    for spec in METRICS:
        if not isinstance(spec, HistogramSpec):
            metric = metrics[otel_name(spec.name)[0]]
            expected = {frozenset(one.labels.items()): one.value for one in families[spec.name].samples}
            assert values(metric) == pytest.approx(expected, abs=60.0 if "timestamp" in spec.name else 0), (
                spec.name
            )
            assert isinstance(metric.data, Sum) is (spec.kind == "counter")
            assert metric.description == spec.help


def test_histogram_becomes_counters_of_buckets_and_sum() -> None:
    throttle = throttle_for_tests()
    for duration_s in (0.004, 0.3, 1000.0):
        permit = throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(permit, Permit)
        throttle.clock.advance(duration_s)
        permit.settle()
    metrics = collected(throttle)
    labels = {("priority", "high"), ("decision", "admitted")}
    buckets = values(metrics["autoglm_throttle.request_duration.bucket"])
    counts = [buckets[frozenset({*labels, ("le", edge)})] for edge in EDGES]
    assert (counts[0], counts[EDGES.index("0.5")], counts[-1]) == (1, 2, 3)
    sums = metrics["autoglm_throttle.request_duration.sum"]
    assert values(sums)[frozenset(labels)] == pytest.approx(1000.304)
    assert sums.unit == "s"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("queue_time_seconds", ("queue_time", "s")),
        ("gpu_memory_used_bytes", ("gpu_memory_used", "By")),
        ("host_disk_bytes_per_second", ("host_disk_bytes_per_second", "By/s")),
        ("requests", ("requests", "1")),
    ],
)
def test_unit_is_left_out_of_the_name(name: str, expected: tuple[str, str]) -> None:
    assert otel_name(f"autoglm_throttle_{name}") == (f"autoglm_throttle.{expected[0]}", expected[1])


def test_names_stay_different() -> None:
    assert len({otel_name(spec.name)[0] for spec in METRICS}) == len(METRICS)


def test_collection_reads_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = throttle_for_tests()
    snapshots = [throttle.snapshot()]
    monkeypatch.setattr(throttle, "snapshot", snapshots.pop)  # a second call would raise
    monkeypatch.setattr(otel, "KEEP_S", 3600.0)
    assert len(collected(throttle)) > 20


def test_metrics_off_exports_nothing() -> None:
    assert collected(throttle_for_tests(metrics="off")) == {}


def test_missing_api_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigError, match=re.escape(how_to_install("otel"))):
        export_to_otel(throttle_for_tests())
