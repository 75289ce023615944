"""Idle and busy power of a device, and its baseline clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.verdict.baselines import LEARN_S, ClockBaseline, PowerBaseline, WindowMean
from autoglm_throttle.types import GpuSample

LIMIT_W = 400.0


def taught(idle_w: float, busy_w: float, seconds: int = 700) -> PowerBaseline:
    power = PowerBaseline()
    half = seconds // 2
    for at in range(seconds):
        power.learn(idle_w if at < half else busy_w, float(at), idle=at < half, busy=at >= half)
    return power


def test_full_span_is_reported_and_restarts() -> None:
    span = WindowMean()
    means = [span.add(float(at), 50.0 + at) for at in range(22)]
    assert [mean for mean in means if mean is not None] == [5.0, 16.0]
    span.add(100.0, 80.0)
    span.restart()
    assert [span.add(1.0, 90.0 + at) for at in range(11)][-1] == 1.0


def test_the_limit_is_the_scale_until_the_range_is_known() -> None:
    assert PowerBaseline().share(100.0, LIMIT_W, 0.0) == 0.25
    power = taught(60.0, 260.0)
    assert (power.idle_w, power.busy_w) == (60.0, 260.0)
    assert power.share(110.0, LIMIT_W, LEARN_S - 1.0) == 110.0 / LIMIT_W
    assert power.share(110.0, LIMIT_W, LEARN_S) == 0.25


@pytest.mark.parametrize(("busy_w", "share"), [(120.0, 0.25), (121.0, 40.0 / 61.0)])
def test_a_spread_within_the_noise_is_no_range(busy_w: float, share: float) -> None:
    assert taught(60.0, busy_w).share(100.0, LIMIT_W, 700.0) == pytest.approx(share)


def test_never_idle_device_has_no_idle_power() -> None:
    power = PowerBaseline()
    for at in range(900):
        power.learn(250.0 if at < 450 else 330.0, float(at), idle=False, busy=True)
    assert power.idle_w is None
    assert power.share(260.0, LIMIT_W, 900.0) == 0.65


def test_power_at_rest_is_that_before_the_first_work() -> None:
    """FIELD 25: it counts until ten idle seconds in a row are known."""
    power = PowerBaseline()
    for at, drawn_w in enumerate((50.0, 54.0, 52.0)):
        power.learn(drawn_w, float(at), idle=True, busy=False)
    assert power.rest_w == pytest.approx(52.0)
    assert power.idle_w is None
    power.learn(300.0, 3.0, idle=False, busy=True)
    power.learn(90.0, 4.0, idle=True, busy=False)
    assert power.rest_w == pytest.approx(52.0), "a pause between two requests is no rest"


def test_neither_idle_nor_busy_breaks_the_span() -> None:
    power = PowerBaseline()
    for at in range(100):
        power.learn(50.0, float(at), idle=at % 9 != 0, busy=False)
    assert power.idle_w is None


@pytest.mark.parametrize(("power_w", "share"), [(20.0, 0.0), (300.0, 1.0)])
def test_beyond_its_ends_the_share_is_an_end(power_w: float, share: float) -> None:
    assert taught(60.0, 260.0).share(power_w, LIMIT_W, 700.0) == share


@given(st.lists(st.floats(0.0, 500.0), min_size=30, max_size=80))
def test_the_learned_ends_are_the_extremes_of_the_means(powers: list[float]) -> None:
    low, high, span, means = PowerBaseline(), PowerBaseline(), WindowMean(), []
    for at, power_w in enumerate(powers):
        low.learn(power_w, float(at), idle=True, busy=False)
        high.learn(power_w, float(at), idle=False, busy=True)
        means.append(span.add(power_w, float(at)))
    report = [mean for mean in means if mean is not None]
    assert (low.idle_w, low.busy_w, high.idle_w, high.busy_w) == (min(report), None, None, max(report))


# --- full speed


def row(clock: float | None = 1400.0, **fields: Any) -> GpuSample:
    report = {
        "throttle": frozenset({"sw_power_cap"}),
        "power_limit_w": 700.0,
        "sm_clock_max_mhz": 2000.0,
        **fields,
    }
    return GpuSample(device="GPU-0", index=0, taken_at_s=0.0, source="nvml", sm_clock_mhz=clock, **report)


def keep(
    speed: ClockBaseline, device: GpuSample, seconds: int, start: float = 0.0, *, busy: bool = True
) -> None:
    for at in range(seconds):
        speed.learn(device, start + at, busy=busy)


def test_full_speed_is_maximum_until_baseline_is_known() -> None:
    speed = ClockBaseline()
    assert speed.share(row()) == 0.7
    shares = []
    for at in range(40):
        speed.learn(row(), float(at), busy=True)
        shares.append(speed.share(row()))
    assert shares == [0.7] * 32 + [1.0] * 8, "three spans of ten seconds"
    assert speed.learned_mhz == 1400.0
    assert speed.share(row(1050.0)) == 0.75


@pytest.mark.parametrize(
    "fields",
    [
        {"throttle": frozenset({"sw_power_cap", "sw_thermal"})},
        {"throttle": frozenset()},
        {"throttle": None},
        {"clock": None},
    ],
    ids=["heat", "free", "no bits", "no clock"],
)
def test_only_the_power_limit_teaches_full_speed(fields: dict[str, Any]) -> None:
    speed = ClockBaseline()
    keep(speed, row(**fields), 100)
    assert speed.learned_mhz is None


def test_idle_device_teaches_nothing() -> None:
    speed = ClockBaseline()
    keep(speed, row(), 100, busy=False)
    assert speed.learned_mhz is None


def test_lowered_limit_stays_visible_and_raised_restarts() -> None:
    speed = ClockBaseline()
    keep(speed, row(), 40)
    keep(speed, row(900.0, power_limit_w=400.0), 600, 40.0)
    assert speed.share(row(900.0, power_limit_w=400.0)) == pytest.approx(900.0 / 1400.0)
    keep(speed, row(1500.0, power_limit_w=680.0), 40, 700.0)
    assert speed.learned_mhz == 1500.0, "a few watts less are the same limit"
    keep(speed, row(1600.0, power_limit_w=1000.0), 5, 800.0)
    assert speed.learned_mhz is None


def test_limit_lowered_before_start_teaches_nothing() -> None:
    speed = ClockBaseline()
    lowered = row(900.0, power_limit_w=400.0, power_limit_default_w=700.0)
    keep(speed, lowered, 600)
    assert speed.share(lowered) == 0.45
    keep(speed, row(power_limit_default_w=700.0), 40, 600.0)
    keep(speed, lowered, 600, 640.0)
    assert speed.share(lowered) == pytest.approx(900.0 / 1400.0)


def test_baseline_of_lowered_limit_is_void_with_known_default() -> None:
    speed = ClockBaseline()
    keep(speed, row(900.0, power_limit_w=400.0), 40)
    assert speed.learned_mhz == 900.0
    keep(speed, row(900.0, power_limit_w=400.0, power_limit_default_w=700.0), 40, 40.0)
    assert speed.learned_mhz is None


def test_unknown_limit_is_not_lowered() -> None:
    speed = ClockBaseline()
    keep(speed, row(power_limit_w=None), 40)
    assert speed.learned_mhz == 1400.0


def test_a_share_needs_a_clock_and_something_to_compare_it_with() -> None:
    assert ClockBaseline().share(row(None)) is None
    assert ClockBaseline().share(row(sm_clock_max_mhz=None)) is None
