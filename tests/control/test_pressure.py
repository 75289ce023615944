"""The terms of the pressure: what each one is, when it is left out, which one decides."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.pressure import (
    DRAM_PEAK,
    UNKNOWN_PRESSURE,
    PressureGauge,
)
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import GpuSample, GpuView, ServiceStats
from tests.control.views import view

NO_WORK = ServiceStats()


def gauge_of(**settings: Any) -> PressureGauge:
    return PressureGauge(GpuSettings(**settings))


@pytest.mark.parametrize(
    ("memory", "work", "value", "term", "terms"),
    [
        (0.46, NO_WORK, 0.5, "memory", {"memory": 0.5}),
        (None, ServiceStats(1.0, 2.0), 0.5, "latency", {"latency": 0.5}),
        (0.46, ServiceStats(1.5, 2.0), 0.75, "latency", {"memory": 0.5, "latency": 0.75}),
        (0.69, ServiceStats(1.0, 2.0), 0.75, "memory", {"memory": 0.75, "latency": 0.5}),
        (0.46, ServiceStats(1.0, 2.0), 0.5, "memory", {"memory": 0.5, "latency": 0.5}),
        (0.46, ServiceStats(5.0, 2.0), 1.0, "latency", {"memory": 0.5, "latency": 2.5}),
        (0.0, NO_WORK, 0.0, "memory", {"memory": 0.0}),
        (None, ServiceStats(0.0, 2.0), 0.0, "latency", {"latency": 0.0}),
    ],
)
def test_the_largest_term_is_the_pressure(
    memory: float | None, work: ServiceStats, value: float, term: str, terms: dict[str, float]
) -> None:
    pressure = gauge_of().measure(view(99.0, memory=memory), work)
    assert pressure.value == pytest.approx(value)
    assert pressure.term == term
    assert pressure.terms == pytest.approx(terms)


@pytest.mark.parametrize("work", [NO_WORK, ServiceStats(p95_s=3.0), ServiceStats(slo_s=2.0)])
@pytest.mark.parametrize("memory", [None, math.nan, -0.1])
def test_what_is_not_known_is_no_term(memory: float | None, work: ServiceStats) -> None:
    assert gauge_of().measure(view(99.0, memory=memory), work) == UNKNOWN_PRESSURE


@pytest.mark.parametrize(("idle", "reported"), [(0.86, True), (0.87, False), (0.95, False)])
def test_memory_never_free_is_no_pressure(idle: float, reported: bool) -> None:
    gauge = gauge_of()
    gauge.measure(view(0.0, memory=idle), NO_WORK)
    assert bool(gauge.measure(view(0.0, memory=0.95), NO_WORK).terms) is reported


def test_the_lowest_fill_seen_counts_as_idle() -> None:
    gauge = gauge_of()
    reported = [bool(gauge.measure(view(0.0, memory=fill), NO_WORK).terms) for fill in (0.9, 0.5, 0.9)]
    assert reported == [False, True, True]


def test_the_target_is_a_setting() -> None:
    gauge = gauge_of(gpu_memory_target=0.5)
    assert gauge.measure(view(0.0, memory=0.25), NO_WORK).value == 0.5
    assert gauge.measure(view(0.0, memory=0.6), NO_WORK).terms == {"memory": 1.2}
    assert gauge_of(gpu_memory_target=0.5).measure(view(0.0, memory=0.45), NO_WORK) == UNKNOWN_PRESSURE


@pytest.mark.parametrize(
    ("wanted", "known"), [(["latency"], {"latency"}), (["memory"], {"memory"}), ([], set())]
)
def test_only_the_wanted_terms_count(wanted: list[str], known: set[str]) -> None:
    pressure = gauge_of(gpu_pressure_terms=wanted).measure(view(0.0, memory=0.5), ServiceStats(1.0, 2.0))
    assert set(pressure.terms) == known


@given(
    fills=st.lists(st.one_of(st.none(), st.floats(0.0, 1.1)), min_size=1, max_size=10),
    p95_s=st.one_of(st.none(), st.floats(0.0, 1e4)),
    slo_s=st.one_of(st.none(), st.floats(0.01, 1e4)),
)
def test_the_table_never_sees_more_than_one(
    fills: list[float | None], p95_s: float | None, slo_s: float | None
) -> None:
    gauge = gauge_of()
    for fill in fills:
        pressure = gauge.measure(view(50.0, memory=fill), ServiceStats(p95_s, slo_s))
        largest = max(pressure.terms.values(), default=None)
        assert pressure.value == (None if largest is None else min(1.0, largest))
        assert pressure.terms.get(pressure.term) == largest


def engine(queued: int | None, kv: float | None, engines: int = 1, memory: float | None = None) -> GpuView:
    seen = view(99.0, memory=memory)
    return replace(seen, queued=queued, kv_used_ratio=kv, engines=engines, engines_at_s=seen.taken_at_s)


@pytest.mark.parametrize(
    ("seen", "value", "term"),
    [
        (engine(0, 0.4), 0.5, "kv"),
        (engine(4, 0.4), 0.8, "queue"),
        (engine(4, 0.4, engines=2), 0.5, "kv"),
        (engine(8, 0.4, engines=2), 0.8, "queue"),
        (engine(50, 0.4), 1.0, "queue"),
        (engine(None, 0.8), 1.0, "kv"),
        (engine(0, None), 0.0, "queue"),
    ],
)
def test_engine_reports_queue_and_cache_fill(seen: GpuView, value: float, term: str) -> None:
    pressure = gauge_of().measure(seen, NO_WORK)
    assert pressure.value == pytest.approx(value)
    assert pressure.term == term


def test_targets_of_engines_are_settings() -> None:
    pressure = gauge_of(gpu_queue_target=10, gpu_kv_target=0.5).measure(engine(5, 0.4), NO_WORK)
    assert pressure.terms == pytest.approx({"queue": 0.5, "kv": 0.8})


def test_device_memory_is_ignored_beside_an_engine() -> None:
    gauge = gauge_of()
    assert "memory" not in gauge.measure(engine(0, 0.1, memory=0.5), NO_WORK).terms
    silent = replace(engine(None, None, engines=0, memory=0.5), engines_at_s=5.0)
    assert gauge.measure(silent, NO_WORK) == UNKNOWN_PRESSURE, "one that has fallen silent has not freed it"


def test_compute_counts_only_where_it_is_wanted() -> None:
    card = GpuSample(
        device="a", index=0, taken_at_s=1.0, source="t", sm_active_ratio=0.6, dram_active_ratio=0.56
    )
    lost = replace(card, device="b", health="lost", sm_active_ratio=1.0)
    seen = replace(view(50.0), devices=(card, lost))
    assert gauge_of().measure(seen, NO_WORK) == UNKNOWN_PRESSURE
    pressure = gauge_of(gpu_pressure_terms="compute").measure(seen, NO_WORK)
    assert pressure.value == pytest.approx(0.56 / DRAM_PEAK)
    bare = replace(card, sm_active_ratio=None, dram_active_ratio=None)
    assert (
        gauge_of(gpu_pressure_terms="compute").measure(replace(seen, devices=(bare,)), NO_WORK)
        == UNKNOWN_PRESSURE
    )
