"""The literal table, its hysteresis and lost devices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.signal import LOSS_HOLD_S
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.types import ControlCause, MissingTelemetryMode, TelemetryState
from tests.control.slow_table import SlowTable
from tests.control.views import SLOW_RELEASE, T0, adaptive, feed, no_source, see, tiers, view


@pytest.mark.parametrize(
    ("samples", "factors"),
    [
        ([86, 86, 86, 80], [1, 1, 0.7, 1]),
        ([86, 86, 85, 86], [1, 1, 1, 1]),
        ([91, 91, 91, 88, 85], [1, 1, 0.4, 0.7, 1]),
        ([86, 86, 96], [1, 1, 0]),
        ([96, 96, 96, 50], [1, 1, 0, 1]),
        ([96, 96, 85, 96, 96, 96], [1, 1, 1, 1, 1, 0]),
        ([86, 86, 86, 91, 96, 91, 86], [1, 1, 0.7, 0.4, 0, 0.4, 0.7]),
    ],
)
def test_the_literal_table(samples: list[float], factors: list[float]) -> None:
    assert feed(tiers(), *samples) == factors


@pytest.mark.parametrize(
    ("settings", "samples", "factors"),
    [
        (SLOW_RELEASE, [96, 96, 96, 88, 88, 88, 80, 80, 80], [1, 1, 0, 0, 0, 0.1, 0.2, 0.3, 0.4]),
        (SLOW_RELEASE, [96, 96, 96, 88, 88, 96, 88, 88, 88], [1, 1, 0, 0, 0, 0, 0, 0, 0.1]),
        (SLOW_RELEASE, [91, 91, 91, 85, 85, 85, 85], [1, 1, 0.4, 0.4, 0.4, 0.5, 0.6]),
        (SLOW_RELEASE, [91, 91, 91, 86, 86, 86, 86], [1, 1, 0.4, 0.4, 0.4, 0.4, 0.4]),
        (ControlSettings(tier_samples=1), [96, 91, 86, 50, 99], [0, 0.4, 0.7, 1, 0]),
        (ControlSettings(tier_samples=5), [96] * 6, [1, 1, 1, 1, 0, 0]),
        (ControlSettings(tier_release_samples=2), [96, 96, 96, 50, 50, 50], [1, 1, 0, 0, 1, 1]),
        (ControlSettings(tier_recovery_step=0.5), [96, 96, 96, 50, 50, 50], [1, 1, 0, 0.5, 1, 1]),
    ],
)
def test_hysteresis_on_the_way_back(
    settings: ControlSettings, samples: list[float], factors: list[float]
) -> None:
    assert feed(tiers(settings), *samples) == pytest.approx(factors)


@given(
    settings=st.builds(
        ControlSettings,
        tier_samples=st.integers(1, 5),
        tier_release_samples=st.integers(1, 4),
        tier_release_margin_pct=st.sampled_from([0.0, 3.0, 5.0, 20.0]),
        tier_recovery_step=st.sampled_from([0.05, 0.3, 1.0]),
    ),
    samples=st.lists(
        st.one_of(
            st.sampled_from([80, 85, 86, 90, 91, 95, 96, 100]),
            st.floats(0, 100),
            st.sampled_from([None, math.nan, 101.0, -1.0, math.inf]),
        ),
        max_size=60,
    ),
)
def test_it_follows_the_slow_table(settings: ControlSettings, samples: list[float | None]) -> None:
    controller, slow = tiers(settings, interval_s=60.0), SlowTable(ControlSettings().tiers, settings)
    factor = 1.0
    for n, pct in enumerate(samples):
        if pct is not None and 0 <= pct <= 100:
            factor = slow.sample(pct)
        state = see(controller, view(pct), T0 + n)
        assert state.factor == state.tier == factor
        assert 0.0 <= state.factor <= 1.0


@pytest.mark.parametrize(
    ("samples", "causes"),
    [
        ([10, 86, 86, 86, 86, 50, 50], "calm strike strike tier tier released calm"),
        ([96, 96, 96, 94], "strike strike tier released"),
    ],
)
def test_each_step_has_its_cause(samples: list[float], causes: str) -> None:
    controller = tiers()
    assert [see(controller, view(p), T0 + n).cause for n, p in enumerate(samples)] == causes.split()


def test_factor_held_by_hysteresis_has_that_cause() -> None:
    controller = tiers(SLOW_RELEASE)
    feed(controller, 96, 96, 96)
    assert see(controller, view(92), T0 + 3).cause is ControlCause.HELD, "too near its edge"
    assert see(controller, view(50), T0 + 4).cause is ControlCause.HELD, "one calm sample of three"


@pytest.mark.parametrize("junk", [None, math.nan, math.inf, -math.inf, -0.1, 100.1])
def test_what_is_no_signal_is_neither_a_strike_nor_calm(junk: float | None) -> None:
    controller = tiers()
    assert feed(controller, 96, 96, junk, 96) == [1, 1, 1, 0]
    rejecting_all = feed(controller, 96, junk, start=T0 + 4)
    assert rejecting_all == [0, 0]
    assert controller.control_state(T0 + 5).load == 0.96
    assert controller.control_state(T0 + 4 + 2.5).telemetry is TelemetryState.LATE, (
        "junk does not keep telemetry fresh"
    )


def test_control_state_has_the_time_of_the_last_change() -> None:
    controller = tiers()
    feed(controller, 86, 86, 86, 87)
    assert controller.control_state(T0 + 4).since_s == T0 + 2
    assert see(controller, view(50), T0 + 5).since_s == T0 + 5


# --- lost devices ---


def test_lost_capacity_multiplies_the_factor_at_once_and_returns_after_three_samples() -> None:
    controller = tiers()
    feed(controller, 50)
    assert see(controller, view(50, 0.5), T0 + 1).factor == 0.5
    assert see(controller, view(None, 0.25), T0 + 2).factor == 0.25, "needs no signal"
    states = [see(controller, view(50, 1.0), T0 + 3 + n) for n in range(3)]
    assert [(state.factor, state.cause) for state in states] == [
        (0.25, ControlCause.CALM),
        (0.25, ControlCause.CALM),
        (1.0, ControlCause.CALM),
    ]


def test_last_device_lost_rejects_all_with_that_cause() -> None:
    controller = tiers()
    feed(controller, 50)
    state = see(controller, view(None, 0.0), T0 + 1)
    assert (state.factor, state.tier, state.cause) == (0.0, 1.0, ControlCause.LOST)
    assert state.may_rise_at_s > T0 + 1
    back = [see(controller, view(50, 1.0), T0 + 2 + n) for n in range(3)]
    assert [(state.factor, state.cause) for state in back] == [
        (0.0, ControlCause.LOST),
        (0.0, ControlCause.LOST),
        (1.0, ControlCause.CALM),
    ]


def test_the_third_sample_from_now_may_bring_the_last_device_back() -> None:
    """Nothing else is held: whoever is refused meanwhile is not told to wait for the end of a hold."""
    controller = tiers()
    see(controller, view(20), T0)
    reported = [see(controller, view(20, left), T0 + 1 + n) for n, left in enumerate([0.0, 1.0, 1.0, 1.0])]
    assert [state.may_rise_at_s for state in reported] == [T0 + 4, T0 + 4, T0 + 4, 0.0]
    assert [state.factor for state in reported] == [0.0, 0.0, 0.0, 1.0]


def test_a_device_lost_from_the_start_is_a_loss_too() -> None:
    state = see(tiers(), view(None, 0.0), T0)
    assert (state.factor, state.cause, state.telemetry) == (
        0.0,
        ControlCause.LOST,
        TelemetryState.STARTING,
    )
    assert (state.may_rise_at_s, state.valid_until_s) == (T0 + 3, T0 + 1)


def test_rejection_with_two_causes_ends_with_the_later() -> None:
    controller = tiers()
    feed(controller, 96, 96, 96)
    assert see(controller, view(None, 0.0), T0 + 3).may_rise_at_s == T0 + 3 + LOSS_HOLD_S, (
        "the table is later"
    )
    controller = tiers(ControlSettings(tier_release_samples=2), MissingTelemetryMode.CLOSED)
    for n in range(40):
        told_s = see(controller, view(None if n else 50.0, 0.0), T0 + n).may_rise_at_s
    assert told_s == T0 + 43, "of the four samples one is the first after a silence"
    back = [see(controller, view(50.0), T0 + 40 + n) for n in range(4)]
    assert [state.factor for state in back] == [0.0, 0.0, 0.0, 1.0]
    assert {state.may_rise_at_s for state in back[:3]} == {T0 + 43}


def test_recovered_source_is_trusted_at_once() -> None:
    """Nothing was expected in between, so nothing was shut."""
    for controller in (tiers(), adaptive()):
        see(controller, view(None, 0.0), T0)
        assert no_source(controller, T0 + 1).factor == 1.0
        assert see(controller, view(50.0), T0 + 2).factor == 1.0


def test_flapping_device_counts_as_lost() -> None:
    controller = tiers()
    see(controller, view(50), T0)
    flaps = [see(controller, view(50, n % 2), T0 + 1 + n) for n in range(60)]
    assert {(state.factor, state.cause) for state in flaps} == {(0.0, ControlCause.LOST)}


def test_after_a_loss_the_table_holds_for_thirty_seconds() -> None:
    controller = tiers()
    feed(controller, 91, 91, 91)
    lost_at = T0 + 3
    assert see(controller, view(91, 0.5), lost_at).factor == 0.2
    for n in range(1, int(LOSS_HOLD_S)):
        state = see(controller, view(20, 0.5), lost_at + n)
        assert (state.tier, state.factor, state.cause) == (0.4, 0.2, ControlCause.HELD), (
            "the hot card left the mean"
        )
    state = see(controller, view(20, 0.5), lost_at + LOSS_HOLD_S)
    assert (state.tier, state.factor) == (1.0, 0.5)


def test_during_the_hold_the_table_may_still_cut() -> None:
    controller = tiers()
    feed(controller, 86, 86, 86)
    see(controller, view(86, 0.5), T0 + 3)
    assert see(controller, view(96, 0.5), T0 + 4).tier == 0.0


# --- silence ---
