"""The metrics, read back with the parser of prometheus-client."""

import dataclasses
import math
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from autoglm_throttle import Demand, GpuSample, Outcome, Permit, Priority, Settings, Throttle
from autoglm_throttle.limiting.gate import GateView
from autoglm_throttle.model import Reason, Telemetry
from autoglm_throttle.observe import METRICS, collector
from autoglm_throttle.observe.metrics import PREFIX, HistogramSpec
from autoglm_throttle.observe.page import metrics_page
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, DurationCounts, Snapshot
from autoglm_throttle.testing import FakeGpu, ManualThrottle, throttle_for_tests

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(throttle: Throttle) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    openmetrics_text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    again = openmetrics_parser.text_string_to_metric_families(openmetrics_text)  # type: ignore[no-untyped-call]
    assert [family.name for family in again] == list(families)
    return families


def value(throttle: Throttle, name: str, **labels: str) -> float | None:
    for family in scraped(throttle).values():
        for sample in family.samples:
            if sample.name == PREFIX + name and sample.labels == labels:
                return sample.value
    return None


def states(throttle: Throttle, name: str) -> dict[str, float]:
    family = scraped(throttle)[PREFIX + name]
    return {"".join(sample.labels.values()): sample.value for sample in family.samples}


def test_each_metric_is_scraped_under_its_name_with_help_and_kind() -> None:
    families = scraped(throttle_for_tests())
    assert list(families) == [spec.name for spec in METRICS]
    for spec in METRICS:
        family = families[spec.name]
        assert family.documentation == spec.help
        assert family.type == {"stateset": "gauge", "info": "gauge"}.get(spec.kind, spec.kind)


GATE = GateView(
    limit=20.5,
    in_flight=17,
    waiting=(0, 3, 250),
    service_rps=101.5,
    demand_rps=(10.0, 30.0, 163.0),
    latency_s=0.2,
    unloaded_s=0.05,
    budget_s=0.5,
    memory_cap=math.inf,
    memory_blind=False,
    slo_unreachable=False,
    pressure=2.0,
)
WAITED = DurationCounts((4, 0, 2, *(0,) * (len(DURATION_BUCKETS_S) - 3), 1), 77.5)


class Loaded(ManualThrottle):
    """A throttle whose snapshot shows what it is told to."""

    shown: dict[str, Any]

    def snapshot(self) -> Snapshot:
        return dataclasses.replace(super().snapshot(), **self.shown)


def loaded(settings: dict[str, Any] | None = None, /, **shown: Any) -> Loaded:
    """A throttle with a gate that has work, unless told otherwise."""
    made = throttle_for_tests(**(settings or {}))
    throttle = Loaded(made.settings, made.clock, made.gpu)
    throttle.shown = {
        "gate": GATE,
        "queue_time": dict.fromkeys(Priority, WAITED),
        "pressure": {"demand": 2.0, "memory": 0.5},
        "would_refuse": {(Priority.LOW, Reason.QUEUE): 7},
    } | shown
    return throttle


def test_each_series_has_the_labels_of_the_table() -> None:
    throttle = loaded()
    throttle.gpu.power_w = 300.0
    throttle.tick()
    for spec, family in zip(METRICS, scraped(throttle).values(), strict=True):
        assert family.samples, spec.name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(spec.labels)


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert re.fullmatch(PREFIX + "[a-z][a-z_]*", spec.name)
        assert not spec.name.endswith(("_total", "_ms", "_count", "_sum"))
        assert spec.help.endswith(".")
        assert isinstance(spec, HistogramSpec) is (spec.kind == "histogram")


def test_registering_reads_nothing() -> None:
    class Silent(ManualThrottle):
        def snapshot(self) -> None:  # type: ignore[override]
            raise AssertionError("nobody asked yet")

    made = throttle_for_tests()
    throttle = Silent(made.settings, made.clock, made.gpu)
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector(throttle))


events = st.lists(
    st.tuples(
        st.sampled_from(Priority),
        st.sampled_from([1.0, 2.0, 1000.0]),
        st.sampled_from(Outcome),
        st.floats(0.0, 100.0),
    ),
    max_size=30,
)


@given(events)
def test_counts_are_exactly_what_happened(events: list[tuple[Priority, float, Outcome, float]]) -> None:
    throttle = throttle_for_tests(user_limit="5/minute", rate_low_rps="2/s")
    wanted: Counter[tuple[str, ...]] = Counter()
    durations: dict[str, list[float]] = {priority.label: [] for priority in Priority}
    for priority, cost, outcome, lasts_s in events:
        verdict = throttle.try_admit(Demand(priority, "somebody", cost))
        reason = verdict.decision.reason
        name = {"ok": "admitted", "gpu": "rejected"}.get(reason.value, "limited")
        wanted[priority.label, name, reason.value] += 1
        throttle.clock.advance(lasts_s)
        if isinstance(verdict, Permit):
            verdict.settle(outcome)
            wanted[priority.label, outcome.value] += 1
            if outcome is not Outcome.NEUTRAL:
                durations[priority.label].append(lasts_s)
        throttle.count_exempt()
    wanted["none", "exempt", "ok"] = len(events)
    families = scraped(throttle)
    counts = {
        tuple(sample.labels[label] for label in spec.labels): sample.value
        for spec in METRICS
        if spec.name in {PREFIX + "requests", PREFIX + "outcomes"}
        for sample in families[spec.name].samples
    }
    assert {labels: count for labels, count in counts.items() if count} == {
        labels: count for labels, count in wanted.items() if count
    }
    for label, lasted in durations.items():
        _check_histogram(families[PREFIX + "request_duration_seconds"], label, lasted)


def _check_histogram(family: Metric, priority: str, lasted: list[float]) -> None:
    mine = [sample for sample in family.samples if sample.labels["priority"] == priority]
    buckets = [
        (float(sample.labels["le"]), sample.value) for sample in mine if sample.name.endswith("_bucket")
    ]
    assert [edge for edge, _ in buckets] == [*DURATION_BUCKETS_S, float("inf")]
    # A clock reading is rounded, so a duration within that rounding of an edge may fall on either side.
    for edge, count in buckets:
        below = sum(one <= edge - 1e-9 for one in lasted)
        assert below <= count <= sum(one <= edge + 1e-9 for one in lasted)
    totals = {sample.name.rpartition("_")[2]: sample.value for sample in mine}
    assert totals["count"] == len(lasted)
    assert totals["sum"] == pytest.approx(sum(lasted))


def test_active_requests_are_those_not_yet_ended() -> None:
    throttle = throttle_for_tests()
    permit = throttle.try_admit(Demand(Priority.HIGH))
    assert isinstance(permit, Permit)
    assert value(throttle, "active_requests", priority="high") == 1
    permit.settle()
    assert value(throttle, "active_requests", priority="high") == 0


def test_the_line_is_told_by_priority() -> None:
    throttle = loaded()
    assert states(throttle, "queued_requests") == {"high": 0, "mid": 3, "low": 250}
    samples = scraped(throttle)[PREFIX + "queue_time_seconds"].samples
    counts = {s.labels["le"]: s.value for s in samples if s.labels["priority"] == "mid" and "le" in s.labels}
    assert [counts[edge] for edge in ("0.005", "0.01", "0.025", "60.0", "+Inf")] == [4, 4, 6, 6, 7]
    assert value(throttle, "queue_time_seconds_sum", priority="low") == 77.5
    assert value(throttle, "queue_time_seconds_count", priority="low") == 7


def test_what_the_gate_measures_is_told() -> None:
    throttle = loaded()
    assert value(throttle, "inflight_requests") == 17
    assert value(throttle, "inflight_limit") == 20.5
    assert value(throttle, "service_rate") == 101.5
    assert states(throttle, "pressure_ratio") == {"demand": 2.0, "memory": 0.5}
    assert value(throttle, "would_refuse_total", priority="low", reason="queue") == 7


@pytest.mark.parametrize(
    ("inflight_max", "limit", "memory_cap", "told"),
    [
        (0, 20.5, math.inf, 20.5),
        (0, 20.5, 9.0, 9.0),
        (8, 20.5, 9.0, 8.0),
        (64, 20.5, math.inf, 20.5),
        (8, math.inf, math.inf, 8.0),
        (0, math.inf, math.inf, None),
    ],
)
def test_the_smallest_bound_is_the_limit(
    inflight_max: int, limit: float, memory_cap: float, told: float | None
) -> None:
    gate = dataclasses.replace(GATE, limit=limit, memory_cap=memory_cap)
    assert value(loaded({"inflight_max": inflight_max}, gate=gate), "inflight_limit") == told


GATED = ("queued_requests", "inflight_requests", "inflight_limit", "service_rate")


def test_without_a_gate_nothing_is_told_of_it() -> None:
    families = scraped(loaded(gate=None, queue_time={}, pressure={}, would_refuse={}))
    for name in (*GATED, "queue_time_seconds", "pressure_ratio", "would_refuse"):
        assert not families[PREFIX + name].samples


def test_a_rate_that_was_not_measured_yet_is_absent() -> None:
    throttle = loaded(gate=dataclasses.replace(GATE, service_rps=None))
    assert value(throttle, "service_rate") is None
    assert value(throttle, "inflight_limit") == 20.5


def test_what_the_table_says_is_told_whether_or_not_it_acts() -> None:
    throttle = loaded()
    assert value(throttle, "table_factor_ratio") is None, "there is no sample yet"
    throttle.tick()
    regime = throttle.regime()
    for factor, armed in ((0.4, False), (0.7, True)):
        throttle.shown = {"regime": dataclasses.replace(regime, table_factor=factor, armed=armed)}
        assert value(throttle, "table_factor_ratio") == factor
        assert value(throttle, "table_armed") == float(armed)
        assert value(throttle, "factor_ratio") == 1.0
    for telemetry, known in ((Telemetry.STALE, True), (Telemetry.BLIND, False), (Telemetry.NONE, False)):
        throttle.shown = {"regime": dataclasses.replace(regime, table_factor=0.4, telemetry=telemetry)}
        assert (value(throttle, "table_factor_ratio") is not None) is known


@pytest.mark.parametrize(
    ("busy_pct", "tier", "factor", "high_rps"),
    [(80, "100", 1.0, 1000), (86, "70", 0.7, 700), (91, "40", 0.4, 400), (96, "0", 0.0, 0)],
)
def test_the_tier_in_force_is_the_state_that_is_1(
    busy_pct: float, tier: str, factor: float, high_rps: float
) -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = busy_pct
    throttle.tick(3)
    assert states(throttle, "tier") == {**dict.fromkeys(("100", "70", "40", "0"), 0.0), tier: 1.0}
    assert value(throttle, "factor_ratio") == factor
    assert value(throttle, "rate_limit", priority="high") == high_rps


def test_between_two_steps_the_last_one_reached_is_in_force() -> None:
    throttle = throttle_for_tests(tiers="80:0.5", tier_recovery_step=0.2)
    throttle.gpu.utilization_pct = 90.0
    throttle.tick(3)
    throttle.gpu.utilization_pct = 10.0
    throttle.tick()
    assert value(throttle, "factor_ratio") == 0.7
    assert states(throttle, "tier") == {"100": 0.0, "50": 1.0}


def test_a_device_is_told_in_base_units() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 50.0
    throttle.gpu.memory_used_bytes = 3
    throttle.gpu.memory_total_bytes = 4
    throttle.gpu.power_w = 312.5
    throttle.tick()
    assert value(throttle, "gpu_utilization_ratio", gpu="0") == 0.5
    assert value(throttle, "gpu_memory_used_bytes", gpu="0") == 3
    assert value(throttle, "gpu_memory_total_bytes", gpu="0") == 4
    assert value(throttle, "gpu_power_watts", gpu="0") == 312.5
    assert value(throttle, "gpu_info", gpu="0", uuid="FAKE-0", model="") == 1
    assert states(throttle, "gpu_devices") == {"ok": 1, "degraded": 0, "lost": 0}


PER_DEVICE = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_power_watts")


def test_what_is_not_known_is_absent_and_never_0() -> None:
    throttle = throttle_for_tests()
    families = scraped(throttle)
    for name in (*PER_DEVICE, "gpu_devices", "gpu_info", "controller_last_sample_timestamp_seconds"):
        assert not families[PREFIX + name].samples
    throttle.gpu.utilization_pct = None
    throttle.tick()
    assert value(throttle, "gpu_utilization_ratio", gpu="0") is None
    assert value(throttle, "gpu_memory_used_bytes", gpu="0") == 0


def test_a_lost_device_has_no_readings() -> None:
    throttle = throttle_for_tests(gpu=FakeGpu(devices=2))
    throttle.tick()
    throttle.gpu.lose(1)
    throttle.tick()
    assert [sample.labels["gpu"] for sample in scraped(throttle)[PREFIX + PER_DEVICE[0]].samples] == ["0"]
    assert states(throttle, "gpu_devices") == {"ok": 1, "degraded": 0, "lost": 1}


def test_readings_end_when_nobody_believes_them_any_more() -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    seen = {}
    for age_s, state in ((2.0, "fresh"), (3.0, "late"), (29.0, "stale"), (31.0, "blind")):
        throttle.clock.advance(age_s - (throttle.clock() - 1001.0))
        assert states(throttle, "telemetry_state")[state] == 1
        assert sum(states(throttle, "telemetry_state").values()) == 1
        seen[state] = value(throttle, "gpu_utilization_ratio", gpu="0")
    assert seen == {"fresh": 0.0, "late": 0.0, "stale": 0.0, "blind": None}
    assert value(throttle, "controller_last_sample_timestamp_seconds") is not None


def test_failed_reads_are_counted() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.raises(OSError("driver"))
    throttle.tick(2)
    assert value(throttle, "controller_errors_total") == 2


def test_hostile_text_from_a_driver_stays_inside_its_label() -> None:
    evil = 'GPU"} 1\nforged_metric 5\n# \\'
    throttle = throttle_for_tests()
    throttle.observe([GpuSample(device=evil, index=0, taken_at_s=throttle.clock(), source="fake", name=evil)])
    families = scraped(throttle)
    assert list(families) == [spec.name for spec in METRICS]
    assert [sample.labels for sample in families[PREFIX + "gpu_info"].samples] == [
        {"gpu": "0", "uuid": evil, "model": evil}
    ]


def test_nothing_that_a_client_sends_becomes_a_label() -> None:
    throttle = throttle_for_tests(user_limit="1/minute")
    for _ in range(2):
        throttle.try_admit(Demand(user="alice", route="secret-route", address="192.0.2.7"))
    said = [
        (sample.name, sample.labels) for family in scraped(throttle).values() for sample in family.samples
    ]
    assert not re.search(r"alice|secret|192", str(said))


def test_a_scrape_does_not_wait_for_a_hung_gpu() -> None:
    gpu = FakeGpu(blocks=True)
    gpu.hang()
    throttle = Throttle(Settings(), gpu=gpu)
    answered = threading.Event()

    def scrape() -> None:
        scraped(throttle)
        answered.set()

    throttle.start()
    try:
        scraper = threading.Thread(target=scrape, daemon=True)
        scraper.start()
        assert answered.wait(5.0)
        assert not gpu._released.is_set()
    finally:
        gpu.recover()
        throttle.stop()


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), (
        "run: python -m autoglm_throttle.observe > docs/metrics.md"
    )


def test_the_page_is_printed_by_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoglm_throttle.observe"], capture_output=True, check=True, text=True
    )
    assert done.stdout == metrics_page()


async def test_the_example_on_the_page_serves_metrics() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", metrics_page(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as scraper:
        answer = await scraper.get("/metrics", follow_redirects=True)
    assert PREFIX + "factor_ratio 1.0" in answer.text
    names["throttle"].stop()
