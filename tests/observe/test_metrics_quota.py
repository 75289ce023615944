"""The metrics of resource quotas."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.observe import METRICS
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Demand, Priority
from tests.observe.scraping import QUOTA, Loaded, loaded, scraped, states, value

NAMES = [spec.name for spec in METRICS if spec.name.startswith(PREFIX + "quota_")]
GB = 10**9


def reported(**changed: Any) -> Loaded:
    return loaded(quota=dataclasses.replace(QUOTA, **changed))


def on_a_device(**settings: Any) -> ManualThrottle:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.memory_total_bytes = 100 * GB
    return throttle_for_tests(clock=clock, gpu=gpu, **{"quotas": True, **settings})


def test_without_quotas_nothing_is_exported_of_them() -> None:
    assert len(NAMES) == 6
    families = scraped(loaded())
    assert not [name for name in NAMES if families[name].samples]


def test_each_quota_figure_is_exported_under_its_name() -> None:
    throttle = reported()
    assert value(throttle, "quota_memory_fill_ratio") == 0.55
    assert states(throttle, "quota_memory_cap_ratio") == {"high": 0.92, "mid": 0.7, "low": 0.5}
    assert states(throttle, "quota_rejecting") == {"high": 0.0, "mid": 0.0, "low": 1.0}
    assert value(throttle, "quota_memory_fill_per_cost_ratio") == 0.0125
    assert value(throttle, "quota_memory_usable_bytes") == 60_000_000_011


@pytest.mark.parametrize("basis", FillBasis)
def test_the_basis_is_the_state_that_is_1(basis: FillBasis) -> None:
    assert states(reported(basis=basis), "quota_basis") == dict.fromkeys(FillBasis, 0.0) | {basis.value: 1.0}


def test_a_fill_that_is_not_known_is_absent_and_never_0() -> None:
    assert value(reported(fill=None), "quota_memory_fill_ratio") is None
    assert value(reported(fill=0.0), "quota_memory_fill_ratio") == 0.0


def test_figures_of_an_older_measurement_end_with_it() -> None:
    stale = reported(basis=FillBasis.UNKNOWN, fill=None)
    measured = ("quota_memory_fill_per_cost_ratio", "quota_memory_usable_bytes")
    assert [value(stale, name) for name in measured] == [None, None]
    assert [value(reported(basis=FillBasis.KEPT, fill=None), name) for name in measured] == [
        0.0125,
        60_000_000_011,
    ]
    assert states(stale, "quota_memory_cap_ratio")["mid"] == 0.7, "it stands in the settings"


def test_engine_reports_no_bytes() -> None:
    engine = reported(basis=FillBasis.CACHE, usable_bytes=None)
    assert value(engine, "quota_memory_usable_bytes") is None
    assert value(engine, "quota_memory_fill_ratio") == 0.55


def test_a_scrape_sees_what_a_throttle_does() -> None:
    throttle = on_a_device(gpu_memory_ratio=0.6)
    assert states(throttle, "quota_basis")["unknown"] == 1.0
    assert value(throttle, "quota_memory_fill_ratio") is None
    throttle.tick()
    throttle.try_admit(Demand(memory_bytes=65 * GB, priority=Priority.HIGH))
    throttle.try_admit(Demand())
    assert states(throttle, "quota_basis")["device"] == 1.0
    assert value(throttle, "quota_memory_fill_ratio") == 0.65
    assert value(throttle, "quota_memory_usable_bytes") == 100 * GB
    assert states(throttle, "quota_memory_cap_ratio") == {"high": 0.92, "mid": 0.6, "low": 0.5}
    assert states(throttle, "quota_rejecting") == {"high": 0.0, "mid": 1.0, "low": 0.0}, "low has not asked"
