"""The metrics of cards, engines and the sources that tell of them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.sampler import SourceView
from autoglm_throttle.gpu.sanity import MEASURED
from autoglm_throttle.observe import METRICS
from autoglm_throttle.observe.gpu_metrics import SOURCE_STATES, labelled
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.types import GpuCondition, GpuSample, GpuVerdict, GpuView
from tests.observe.scraping import EVERYTHING, knowing_all, loaded, scraped, states, value

ENGINE = "FAKE-ENGINE-0"

OF_A_DEVICE = {
    "gpu_utilization_ratio": 0.91,
    "gpu_graphics_active_ratio": 0.92,
    "gpu_sm_active_ratio": 0.41,
    "gpu_sm_occupancy_ratio": 0.22,
    "gpu_tensor_active_ratio": 0.33,
    "gpu_dram_active_ratio": 0.44,
    "gpu_memory_busy_ratio": 0.55,
    "gpu_memory_used_bytes": 3_000_000_007,
    "gpu_memory_total_bytes": 8_000_000_009,
    "gpu_power_watts": 312.5,
    "gpu_power_limit_watts": 700.25,
    "gpu_power_limit_default_watts": 750.75,
    "gpu_energy_joules_total": 1234.5,
    "gpu_temperature_celsius": 61.5,
    "gpu_temperature_margin_celsius": -2.5,
    "gpu_sm_clock_hertz": 1.755e9,
    "gpu_sm_clock_max_hertz": 1.98e9,
    "gpu_throttled_seconds_total": 4.5,
    "gpu_nvlink_errors_total": 17,
}
BOTH_WAYS = {
    "gpu_pcie_bytes_total": (10_001, 10_002),
    "gpu_pcie_bytes_per_second": (10_003.5, 10_004.5),
    "gpu_nvlink_bytes_total": (10_005, 10_006),
    "gpu_nvlink_bytes_per_second": (10_007.5, 10_008.5),
}
OF_AN_ENGINE = {
    "engine_running_requests": 23,
    "engine_queued_requests": 29,
    "engine_kv_used_ratio": 0.77,
    "engine_tokens_total": 31_000,
    "engine_preemptions_total": 37,
}
DERIVED = {"power_mean_w", "throttled_ratio", "tokens_per_s", "preemptions_per_s", "period_s"}
"""Made from the counters that are exported, or said of the source; a reader makes its own."""

PER_DEVICE = [spec for spec in METRICS if spec.labels[:1] == ("gpu",) and spec.kind != "info"]


def exported_all() -> ManualThrottle:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock, gpu=knowing_all(clock))
    throttle.tick()
    return throttle


def throttle_of(devices: int, engines: int = 0) -> ManualThrottle:
    clock = ManualClock()
    return throttle_for_tests(clock=clock, gpu=FakeGpu(devices, engines=engines, clock=clock))


def test_every_quantity_is_exported_in_base_units() -> None:
    throttle = exported_all()
    for name, expected in OF_A_DEVICE.items():
        assert value(throttle, name, gpu="0") == pytest.approx(expected), name
    for name, directions in BOTH_WAYS.items():
        for direction, expected in zip(("receive", "transmit"), directions, strict=True):
            assert value(throttle, name, gpu="0", direction=direction) == expected, name
    for name, expected in OF_AN_ENGINE.items():
        assert value(throttle, name, engine=ENGINE) == expected, name
    assert value(throttle, "gpu_throttle", gpu="0", reason="sw_thermal") == 1
    assert value(throttle, "gpu_throttle", gpu="0", reason="hw_thermal") == 0
    assert value(throttle, "gpu_info", gpu="0", uuid="FAKE-0", model="", kind="gpu") == 1
    assert value(throttle, "engine_info", engine=ENGINE, model="") == 1


def test_no_quantity_of_the_vocabulary_is_forgotten() -> None:
    assert set(MEASURED) - DERIVED == set(EVERYTHING)
    names = {PREFIX + name for name in (*OF_A_DEVICE, *BOTH_WAYS, *OF_AN_ENGINE)}
    made_of_readings = {
        spec.name + ("_total" if spec.kind == "counter" else "")
        for spec in METRICS
        if spec.kind in {"counter", "gauge"} and spec.labels[:1] in {("gpu",), ("engine",)}
    }
    assert made_of_readings - names == {PREFIX + "gpu_verdict_confidence_ratio", PREFIX + "gpu_fake_busy"}


def test_what_is_not_known_is_absent_and_never_0() -> None:
    throttle = throttle_for_tests()
    families = scraped(throttle)
    for spec in METRICS:
        if re.match(PREFIX + "(gpu|engine)_(?!source)", spec.name):
            assert not families[spec.name].samples, spec.name
    assert not families[PREFIX + "controller_last_sample_timestamp_seconds"].samples
    throttle.gpu.utilization_pct = None
    throttle.tick()
    families = scraped(throttle)
    reported = {spec.name.removeprefix(PREFIX) for spec in PER_DEVICE if families[spec.name].samples}
    verdicts = {"gpu_verdict", "gpu_verdict_confidence_ratio", "gpu_fake_busy"}
    assert reported == {"gpu_memory_used_bytes", "gpu_memory_total_bytes"} | verdicts
    assert value(throttle, "gpu_memory_used_bytes", gpu="0") == 0


def test_device_not_throttled_is_exported_as_such() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.throttle = frozenset()
    throttle.tick()
    assert set(states(throttle, "gpu_throttle").values()) == {0.0}


def test_lost_device_has_a_verdict_and_no_readings() -> None:
    throttle = throttle_of(devices=4)
    throttle.tick()
    throttle.gpu.lose(1)
    throttle.tick()
    utilization = scraped(throttle)[PREFIX + "gpu_utilization_ratio"].samples
    assert [sample.labels["gpu"] for sample in utilization] == ["0", "2", "3"]
    assert states(throttle, "gpu_devices") == {"ok": 3, "degraded": 0, "lost": 1}
    assert value(throttle, "gpu_capacity_ratio") == 0.75
    assert value(throttle, "gpu_verdict", gpu="1", verdict="lost") == 1
    throttle.gpu.recover()
    throttle.gpu.devices = 3
    throttle.tick(100)
    assert value(throttle, "gpu_verdict", gpu="3", verdict="lost") == 1, "however long ago it vanished"


def test_stale_readings_are_no_longer_exported() -> None:
    throttle = exported_all()
    seen = {}
    for age_s, state in ((2.0, "fresh"), (3.0, "late"), (29.0, "stale"), (31.0, "blind")):
        throttle.clock.advance(age_s - (throttle.clock() - 1001.0))
        assert states(throttle, "telemetry_state")[state] == 1
        assert sum(states(throttle, "telemetry_state").values()) == 1
        reported = scraped(throttle)
        seen[state] = {
            name: len(reported[PREFIX + name].samples)
            for name in ("gpu_utilization_ratio", "gpu_throttle", "gpu_fake_busy", "engine_running_requests")
        }
    assert seen["fresh"] == seen["late"] == seen["stale"]
    assert set(seen["fresh"].values()) == {1, 5}
    assert set(seen["blind"].values()) == {0}
    assert value(throttle, "controller_last_sample_timestamp_seconds") is not None


def test_readings_of_a_slow_source_are_exported_longer() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.period_s = 30.0
    throttle.tick()
    throttle.clock.advance(149.0)
    assert value(throttle, "gpu_utilization_ratio", gpu="0") == 0.0
    throttle.clock.advance(2.0)
    assert value(throttle, "gpu_utilization_ratio", gpu="0") is None


def test_reading_reported_late_ends_sooner() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.age_s = 20.0
    throttle.tick()
    assert value(throttle, "gpu_utilization_ratio", gpu="0") == 0.0
    throttle.clock.advance(11.0)
    assert value(throttle, "gpu_utilization_ratio", gpu="0") is None


def test_the_verdict_is_the_state_that_is_1() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 50.0
    throttle.tick(4)
    reported = {labels["verdict"]: one for labels, one in series(throttle, "gpu_verdict")}
    assert reported == dict.fromkeys(GpuCondition, 0.0) | {GpuCondition.WORKING: 1.0}
    assert value(throttle, "gpu_fake_busy", gpu="0") == 0.0


def series(throttle: ManualThrottle, name: str) -> list[tuple[dict[str, str], float]]:
    return [(sample.labels, sample.value) for sample in scraped(throttle)[PREFIX + name].samples]


@pytest.mark.parametrize("finding", GpuCondition)
def test_fake_busy_follows_the_verdict(finding: GpuCondition) -> None:
    verdict = GpuVerdict(finding, 0.0, 0.625)
    row = GpuSample(device="GPU-a", index=3, taken_at_s=1e9, source="fake")
    view = GpuView(0.0, None, None, None, None, 1.0, (row,), verdicts={("", "GPU-a"): verdict})
    throttle = loaded(view=view)
    fake = finding in {GpuCondition.STALLED, GpuCondition.DEGRADED, GpuCondition.UNDERFED}
    assert value(throttle, "gpu_fake_busy", gpu="3") == fake
    assert value(throttle, "gpu_verdict", gpu="3", verdict=finding.value) == 1.0
    assert value(throttle, "gpu_verdict_confidence_ratio", gpu="3") == 0.625


def card(index: int = 0, **fields: Any) -> GpuSample:
    row: dict[str, Any] = {"device": f"GPU-{index}", "index": index, "taken_at_s": 0.0, "source": "s"}
    return GpuSample(**(row | fields))


def test_devices_are_named_by_index_and_engines_by_position() -> None:
    rows = [
        card(2),
        card(0, host="node-7"),
        card(300, kind="mig", device="MIG-x"),
        card(kind="engine", device="127.0.0.1:8000"),
        card(kind="engine", device="llm:8000", host="llm:8000"),
        card(kind="engine", device="127.0.0.1:8000", host="node-7"),
    ]
    assert [label for label, _ in labelled(rows)] == [
        *("2", "node-7/0", "300"),
        *("127.0.0.1:8000", "llm:8000", "node-7/127.0.0.1:8000"),
    ]


def test_two_devices_of_one_number_are_distinct() -> None:
    rows = [card(0, device="GPU-a"), card(0, device="GPU-b"), card(1), card(0, device="0", kind="engine")]
    assert [label for label, _ in labelled(rows)] == ["0", "0#2", "1", "0"]


rows = st.lists(
    st.builds(
        card,
        index=st.integers(0, 2),
        host=st.sampled_from(["", "a", "a/0"]),
        device=st.sampled_from(["GPU-1", "GPU-2", "a:80"]),
        kind=st.sampled_from(["gpu", "mig", "engine"]),
    ),
    max_size=8,
)


@given(rows)
def test_no_two_series_are_equal(rows: list[GpuSample]) -> None:
    known = [dataclasses.replace(row, taken_at_s=1e9, running=1, utilization_pct=1.0) for row in rows]
    throttle = loaded(view=GpuView(0.0, None, None, None, None, 1.0, tuple(known)))
    families = scraped(throttle)
    for name in ("gpu_utilization_ratio", "engine_running_requests", "gpu_info"):
        labels = Counter(tuple(sorted(sample.labels.items())) for sample in families[PREFIX + name].samples)
        assert set(labels.values()) <= {1}


def test_engines_are_no_devices() -> None:
    throttle = throttle_of(devices=1, engines=3)
    throttle.tick()
    assert states(throttle, "gpu_devices") == {"ok": 1, "degraded": 0, "lost": 0}
    assert len(series(throttle, "gpu_info")) == 1
    assert len(series(throttle, "engine_info")) == 3


def test_without_a_device_there_is_no_capacity() -> None:
    throttle = throttle_of(devices=0, engines=1)
    throttle.tick()
    assert value(throttle, "gpu_capacity_ratio") is None
    assert not series(throttle, "gpu_devices")
    assert value(throttle, "engine_running_requests", engine=ENGINE) == 0


SOURCE = SourceView(
    name="dcgm:node-7:9400",
    state="failing",
    last_error="ProviderUnavailable: it does not answer",
    failures=7,
    overruns=2,
    implausible=3,
    crashes=1,
    interval_s=5.0,
    age_s=40.0,
)


def test_each_source_exports_its_state() -> None:
    throttle = loaded(sources=(SOURCE, dataclasses.replace(SOURCE, name="nvml", age_s=None)))
    reported = {
        name: value(throttle, f"gpu_source_{name}", source="dcgm:node-7:9400")
        for name in (
            *("failures_total", "overruns_total", "implausible_total", "crashes_total"),
            "interval_seconds",
        )
    }
    assert list(reported.values()) == [7, 2, 3, 1, 5.0]
    for state in SOURCE_STATES:
        expected = float(state == "failing")
        assert value(throttle, "gpu_source_state", source="nvml", state=state) == expected
    (_, read_at_s), *more = series(throttle, "gpu_source_last_read_timestamp_seconds")
    assert throttle.snapshot().taken_at_wall_s - read_at_s == pytest.approx(40.0, abs=5.0)
    assert not more, "what was never read has no time"


def test_a_source_that_fails_is_counted_under_its_name() -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    assert value(throttle, "gpu_source_state", source="fake", state="reading") == 1
    throttle.gpu.fail_with(OSError("driver"))
    throttle.tick(2)
    assert value(throttle, "gpu_source_failures_total", source="fake") == 2
    assert value(throttle, "controller_errors_total") == 2


def test_hostile_driver_text_is_escaped_in_its_label() -> None:
    evil = 'GPU"} 1\nforged_metric 5\n# \\'
    throttle = throttle_for_tests()
    throttle.observe([card(device=evil, taken_at_s=throttle.clock(), source="fake", name=evil)])
    families = scraped(throttle)
    assert list(families) == [spec.name for spec in METRICS]
    assert [sample.labels for sample in families[PREFIX + "gpu_info"].samples] == [
        {"gpu": "0", "uuid": evil, "model": evil, "kind": "gpu"}
    ]
