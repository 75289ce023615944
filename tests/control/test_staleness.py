"""The ladder by age: where each rung begins, and that the factor walks, never jumps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.types import MissingTelemetryMode, TelemetryState
from tests.control.slow_table import slow_ladder
from tests.control.views import staleness

intervals = st.sampled_from([0.2, 1.0, 2.5, 60.0])
ratios = st.floats(0.0, 1.0)


def after(age_s: float) -> float:
    return math.nextafter(age_s, math.inf)


@pytest.mark.parametrize(
    ("ladder", "fresh_s", "stale_s", "blind_s"),
    [
        (staleness(), 2.0, 3.0, 30.0),
        (staleness(sample_interval_s=0.2), 0.4, 3.0, 30.0),
        (staleness(sample_interval_s=2.0), 4.0, 6.0, 30.0),
        (staleness(sample_interval_s=10.0), 20.0, 30.0, 60.0),
        (staleness(gpu_stale_after_s=1.5), 1.5, 1.5, 30.0),
        (staleness(gpu_stale_after_s=10.0, gpu_blind_after_s=12.0), 2.0, 10.0, 20.0),
    ],
)
def test_each_telemetry_state_begins_just_after_its_edge(
    ladder: Staleness, fresh_s: float, stale_s: float, blind_s: float
) -> None:
    assert ladder.state(0.0) is TelemetryState.FRESH
    assert ladder.state(fresh_s) is TelemetryState.FRESH
    assert ladder.state(after(fresh_s)) is (
        TelemetryState.LATE if stale_s > fresh_s else TelemetryState.STALE
    )
    assert ladder.state(stale_s) is (TelemetryState.LATE if stale_s > fresh_s else TelemetryState.FRESH)
    assert ladder.state(after(stale_s)) is TelemetryState.STALE
    assert ladder.state(blind_s) is TelemetryState.STALE
    assert ladder.state(after(blind_s)) is TelemetryState.BLIND
    assert ladder.state(math.inf) is TelemetryState.BLIND


@pytest.mark.parametrize(
    ("unknown", "assumed"),
    [
        (MissingTelemetryMode.OPEN, 1.0),
        (MissingTelemetryMode.LAST, 0.4),
        (MissingTelemetryMode.CONSERVATIVE, 0.7),
        (MissingTelemetryMode.CLOSED, 0.0),
    ],
)
def test_what_is_assumed_when_blind(unknown: MissingTelemetryMode, assumed: float) -> None:
    ladder = staleness(gpu_unknown=unknown)
    assert ladder.assumed(0.4) == assumed
    assert [ladder.factor(0.4, age) for age in (0.0, 2.5, 3.0)] == [0.4] * 3
    assert ladder.factor(0.4, 16.5) == pytest.approx((0.4 + assumed) / 2)
    assert ladder.factor(0.4, 30.0) == ladder.factor(0.4, math.inf) == assumed


@given(
    interval_s=intervals,
    held=ratios,
    unknown=st.sampled_from(MissingTelemetryMode),
    ages=st.lists(st.floats(0, 200), max_size=20),
)
def test_the_factor_is_the_slow_one_and_walks_straight_from_held_to_assumed(
    interval_s: float, held: float, unknown: MissingTelemetryMode, ages: list[float]
) -> None:
    ladder = staleness(sample_interval_s=interval_s, gpu_unknown=unknown)
    assumed = ladder.assumed(held)
    steepest = abs(assumed - held) / (ladder.blind_s - ladder.stale_s)
    previous, previous_age = held, 0.0
    for age in sorted(ages):
        factor = ladder.factor(held, age)
        expected = slow_ladder(held, age, stale_s=ladder.stale_s, blind_s=ladder.blind_s, unknown=unknown)
        assert factor == pytest.approx(expected, abs=1e-12)
        assert 0.0 <= factor <= 1.0
        assert (factor - previous) * (assumed - held) >= 0.0, "monotone"
        assert abs(factor - previous) <= steepest * (age - previous_age) + 1e-12, "continuous"
        previous, previous_age = factor, age
