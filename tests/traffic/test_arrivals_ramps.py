"""A ramp is exact: the number of planned requests is the integral of the rate at any time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadShape, PriorityMix, make_plan

RATES = st.floats(min_value=1e-3, max_value=1e5)
DURATIONS = st.floats(min_value=1e-3, max_value=1e4)
SHARES = st.floats(min_value=0.0, max_value=1.0)


def integral(level: LoadLevel, until_s: float) -> float:
    rise = (level.last_rps - level.rate_rps) / level.duration_s
    return level.rate_rps * until_s + 0.5 * rise * until_s * until_s


@given(RATES | st.just(0.0), RATES, DURATIONS, SHARES, st.booleans())
def test_the_inverse_of_the_integrated_rate_is_exact(
    low: float, high: float, duration_s: float, share: float, falling: bool
) -> None:
    first, last = (high, low) if falling else (low, high)
    level = LoadLevel(first, duration_s, end_rps=last)
    mass = share * level.requests
    when_s = level.time_of(mass)
    assert -1e-9 * duration_s <= when_s <= duration_s * (1.0 + 1e-9)
    assert integral(level, when_s) == pytest.approx(mass, rel=1e-9, abs=1e-9 * level.requests)


@given(RATES, DURATIONS, SHARES)
def test_a_ramp_that_does_not_rise_is_a_level(rate_rps: float, duration_s: float, share: float) -> None:
    level, flat = LoadLevel(rate_rps, duration_s), LoadLevel(rate_rps, duration_s, end_rps=rate_rps)
    assert flat.time_of(share * flat.requests) == level.time_of(share * level.requests)
    assert level.time_of(share * level.requests) == pytest.approx(share * duration_s, abs=1e-9 * duration_s)
    assert flat.label == level.label


def test_the_ends_of_a_ramp_are_its_ends() -> None:
    for first, last in ((0.0, 50.0), (50.0, 0.0), (3.0, 7.0), (7.0, 3.0)):
        level = LoadLevel(first, 10.0, end_rps=last)
        assert level.time_of(0.0) == 0.0
        assert level.time_of(level.requests) == 10.0


@pytest.mark.parametrize(("first", "last"), [(0.0, 1000.0), (1000.0, 0.0), (100.0, 900.0)])
def test_uniform_arrivals_of_a_ramp_follow_the_rate(first: float, last: float) -> None:
    shape = LoadShape.parse(f"ramp:{first}:{last}:10")
    made = make_plan(shape, Arrivals.UNIFORM, PriorityMix())
    assert len(made) == 5000
    for second in range(10):
        planned = sum(second <= offset_s < second + 1 for offset_s in made.offsets)
        level = shape.levels[0]
        assert planned == pytest.approx(integral(level, second + 1.0) - integral(level, second), abs=1.0)


def test_a_fall_mirrors_a_rise() -> None:
    rise, fall = LoadLevel(0.0, 4.0, end_rps=10.0), LoadLevel(10.0, 4.0, end_rps=0.0)
    for mass in (0.0, 1.0, 7.5, 19.0, 20.0):
        assert rise.time_of(mass) == pytest.approx(4.0 - fall.time_of(20.0 - mass), abs=1e-12)


def test_ramps_stand_beside_levels_and_have_names_of_their_own() -> None:
    shape = LoadShape([LoadLevel(10.0, 2.0), LoadLevel(10.0, 2.0, end_rps=30.0), LoadLevel(30.0, 1.0, "top")])
    assert shape.requests == 20.0 + 40.0 + 30.0
    made = make_plan(shape, Arrivals.UNIFORM, PriorityMix())
    assert made.names == ("10/s", "10-30/s", "top")
    assert [made.segments.count(segment) for segment in range(3)] == [20, 40, 30]
    assert made.offsets[20] == 2.0
    assert made.offsets[60] == 4.0


@pytest.mark.parametrize("ends", [(0.0, 0.0), (-1.0, 5.0), (5.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_a_ramp_needs_rates(ends: tuple[float, float]) -> None:
    with pytest.raises(TrafficError, match="rate"):
        LoadLevel(ends[0], 1.0, end_rps=ends[1])


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.nan, math.inf])
def test_a_level_needs_a_duration(duration_s: float) -> None:
    with pytest.raises(TrafficError, match="duration"):
        LoadLevel(1.0, duration_s)
