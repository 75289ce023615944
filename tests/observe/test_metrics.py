"""The metrics, read back with the parser of prometheus-client."""

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
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from autoglm_throttle import Demand, GpuSample, Outcome, Permit, Priority, Rejection, Settings, Throttle
from autoglm_throttle.observe import METRICS, collector
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec
from autoglm_throttle.observe.page import metrics_page
from autoglm_throttle.snapshot import DURATION_BUCKETS_S, FleetView
from autoglm_throttle.testing import FakeGpu, ManualThrottle, throttle_for_tests
from tests.observe.scraping import STORE, loaded, scraped, states, value

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_each_metric_is_scraped_under_its_name_with_help_and_kind() -> None:
    families = scraped(throttle_for_tests())
    assert list(families) == [spec.name for spec in METRICS]
    for spec in METRICS:
        family = families[spec.name]
        assert family.documentation == spec.help
        assert family.type == {"stateset": "gauge", "info": "gauge"}.get(spec.kind, spec.kind)


def test_each_series_has_the_labels_of_the_table() -> None:
    throttle = loaded(store=STORE, fleet=FleetView(4, True, 1, 0))
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
        assert isinstance(verdict, (Permit, Rejection))
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
    code, _ = re.findall(r"^```python\n(.*?)^```$", metrics_page(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as scraper:
        answer = await scraper.get("/metrics", follow_redirects=True)
    assert PREFIX + "factor_ratio 1.0" in answer.text
    names["throttle"].stop()
