"""Implausible numbers become unknown, and nothing else changes."""

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.sanity import RANGES, drop_implausible
from autoglm_throttle.types import GpuSample

GOOD = GpuSample(
    device="GPU-a",
    index=0,
    taken_at_s=1.0,
    source="test",
    utilization_pct=100.0,
    memory_busy_pct=0.0,
    memory_used_bytes=80,
    memory_total_bytes=80,
    power_w=5000.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
    temperature_c=-50.0,
    sm_clock_mhz=0.0,
    sm_clock_max_mhz=1980.0,
)


def sample(**values: Any) -> GpuSample:
    given_values = {field.name: getattr(GOOD, field.name) for field in fields(GOOD)} | values
    return GpuSample(**given_values)


def test_every_number_of_a_sample_is_checked() -> None:
    optional = {field.name for field in fields(GpuSample) if field.default is None}
    assert optional - {"throttle"} == set(RANGES)


def test_a_good_sample_comes_back_itself() -> None:
    row, wrong = drop_implausible(GOOD)
    assert row is GOOD
    assert wrong == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("utilization_pct", 100.5),
        ("utilization_pct", -1),
        ("utilization_pct", math.nan),
        ("utilization_pct", 4294967295),
        ("memory_busy_pct", math.inf),
        ("memory_used_bytes", 81),
        ("memory_used_bytes", -1),
        ("memory_used_bytes", 10**400),
        ("memory_total_bytes", 0),
        ("power_w", 5000.1),
        ("power_w", -math.inf),
        ("power_limit_w", 0),
        ("power_limit_default_w", 0),
        ("temperature_c", 200.5),
        ("temperature_c", -51),
        ("sm_clock_mhz", math.nan),
        ("sm_clock_max_mhz", 0),
    ],
)
def test_implausible_value_becomes_unknown(name: str, value: float) -> None:
    row, wrong = drop_implausible(sample(**{name: value}))
    assert wrong == (name,)
    assert row == sample(**{name: None})


def test_used_above_total_is_named_once() -> None:
    assert drop_implausible(sample(memory_used_bytes=2**60))[1] == ("memory_used_bytes",)


def test_used_without_a_total_is_believed() -> None:
    assert drop_implausible(sample(memory_total_bytes=None))[1] == ()


@pytest.mark.parametrize("age_s", [math.nan, -0.1, -math.inf, math.inf])
def test_an_age_that_cannot_be_is_that_of_a_row_read_now(age_s: float) -> None:
    row, wrong = drop_implausible(sample(age_s=age_s))
    assert wrong == ("age_s",)
    assert row == sample(age_s=0.0)
    assert drop_implausible(sample(age_s=86_400.0))[1] == ()


def test_unrecognized_throttle_reason_becomes_unknown() -> None:
    known = sample(throttle=frozenset({"sw_thermal", "hw_slowdown"}))
    assert drop_implausible(known) == (known, ())
    assert drop_implausible(sample(throttle=frozenset())) == (sample(throttle=frozenset()), ())
    odd = sample(throttle=frozenset({"sw_thermal", "tired"}))
    assert drop_implausible(odd) == (sample(throttle=None), ("throttle",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("period_s", math.inf),
        ("energy_j", -1.0),
        ("energy_j", 1e19),
        ("throttled_ns", 2**64),
        ("temperature_margin_c", 300.0),
        ("sm_active_ratio", 1.01),
        ("dram_active_ratio", -0.01),
        ("nvlink_errors", -1),
        ("pcie_rx_bps", 2e12),
        ("kv_used_ratio", math.nan),
        ("queued", -1),
        ("tokens_total", 0x7FFFFFFFFFFFFFF0 * 2),
    ],
)
def test_implausible_counters_and_shares_become_unknown(name: str, value: float) -> None:
    assert drop_implausible(sample(**{name: value})) == (sample(**{name: None}), (name,))


NUMBERS = st.none() | st.floats() | st.integers()


@given(st.fixed_dictionaries(dict.fromkeys(RANGES, NUMBERS)), st.floats())
def test_nothing_is_clamped_and_the_rest_is_in_range(values: dict[str, Any], age_s: float) -> None:
    row, wrong = drop_implausible(sample(**values, age_s=age_s))
    assert 0.0 <= row.age_s < math.inf
    for name, (low, high) in RANGES.items():
        kept = getattr(row, name)
        assert (kept is None) == (values[name] is None or name in wrong)
        if kept is not None:
            assert kept == values[name]
            assert low <= kept <= high
    assert drop_implausible(row) == (row, ())
