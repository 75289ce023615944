"""The stabilised table when samples stay away, devices are lost, or the signal is another one."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from autoglm_throttle.control.staleness import BLEND_STEP_S
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.types import (
    ControlCause,
    GpuView,
    MissingTelemetryMode,
    ServiceStats,
    Signal,
    TelemetryState,
)
from tests.control.views import T0, adaptive, no_source, quiet, see, source_lost, view, waiting

N = 1600.0
WORK = ServiceStats()


@pytest.mark.parametrize("unknown", MissingTelemetryMode)
def test_a_cut_is_held_while_late_and_released_once_stale(unknown: MissingTelemetryMode) -> None:
    controller = adaptive(unknown=unknown)
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    last = T0 + 2
    for age, state, why, budget in [
        (2.0, TelemetryState.FRESH, ControlCause.TIER, 115.0),
        (3.0, TelemetryState.LATE, ControlCause.TIER, 115.0),
        (3.001, TelemetryState.STALE, ControlCause.STALE, None),
        (30.001, TelemetryState.BLIND, ControlCause.BLIND, None),
    ]:
        regime = controller.control_state(last + age)
        assert (regime.telemetry, regime.cause) == (state, why)
        assert regime.budget_rps == (None if budget is None else pytest.approx(budget))
        released = budget is None
        assert regime.armed is not released
        assert (regime.factor == 1.0) is released
        assert (regime.ceilings == (1.0, 1.0, 1.0)) is released
        assert (regime.tier == 1.0) is released
    assert regime.load == 1.0, "blind: how full the service is"


def test_the_release_by_age_comes_at_until_s() -> None:
    controller = adaptive()
    for n in range(3):
        regime = controller.observe(view(96.0), waiting(), WORK, T0 + n)
    states = []
    while regime.valid_until_s < math.inf:
        before = controller.control_state(math.nextafter(regime.valid_until_s, 0.0))
        assert (before.budget_rps, before.telemetry) == (regime.budget_rps, regime.telemetry)
        regime = controller.control_state(math.nextafter(regime.valid_until_s, math.inf))
        states.append(regime.telemetry)
    assert [state for state, _ in itertools.groupby(states)] == [
        TelemetryState.LATE,
        TelemetryState.STALE,
        TelemetryState.BLIND,
    ]


def test_after_an_outage_three_new_samples_are_needed_for_a_cut() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    assert not controller.control_state(T0 + 5.5).armed
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 6.0 + n) for n in range(3)]
    assert [regime.budget_rps is None for regime in back] == [True, True, False]
    assert [regime.cause for regime in back] == [ControlCause.STRIKE, ControlCause.STRIKE, ControlCause.TIER]


def test_after_an_outage_a_quicker_table_needs_three_samples_too() -> None:
    controller = adaptive(ControlSettings(tier_samples=1))
    assert controller.observe(view(96.0), waiting(), WORK, T0).armed
    assert not controller.control_state(T0 + 5.5).armed
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 6.0 + n) for n in range(4)]
    assert [regime.armed for regime in back] == [False, False, True, True]


def test_strikes_from_before_an_outage_do_not_count() -> None:
    controller = adaptive(ControlSettings(tier_samples=5))
    for n in range(4):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    controller.observe(view(None), waiting(), WORK, T0 + 9.0)
    assert controller.observe(view(96.0), quiet(), WORK, T0 + 9.5).cause is ControlCause.CALM
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 10.0 + n) for n in range(5)]
    assert [regime.armed for regime in back] == [False, False, False, False, True]


def test_a_late_sample_is_neither_a_strike_nor_calm() -> None:
    controller = adaptive()
    for at, pct in [(0.0, 96.0), (1.0, 96.0), (2.0, None), (3.0, None), (4.0, 96.0)]:
        regime = controller.observe(view(pct), waiting() if pct else quiet(), WORK, T0 + at)
    assert regime.cause is ControlCause.TIER
    for at in (5.0, 6.0):
        assert controller.observe(view(None), quiet(), WORK, T0 + at).armed


def test_an_unknown_signal_counts_as_stale() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    armed = [controller.observe(view(None), quiet(), WORK, T0 + 3.0 + n).armed for n in range(4)]
    assert armed == [True, True, True, False]


def test_stale_cut_is_held_while_the_limiter_confirms_overload() -> None:
    """FIELD: losing telemetry raises no share; two intervals without overload release it."""
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    for age in (4.0, 5.5, 40.0, 1000.0):
        regime = controller.control_state(T0 + 2.0 + age, waiting())
        assert regime.armed
        assert regime.budget_rps == pytest.approx(115.0)
        assert regime.valid_until_s == T0 + 2.0 + age + BLEND_STEP_S, "else no request asks again"
    assert regime.telemetry is TelemetryState.BLIND
    assert controller.control_state(T0 + 1004.0, quiet()).armed
    regime = controller.control_state(T0 + 1004.001, quiet())
    assert (regime.armed, regime.factor, regime.cause) == (False, 1.0, ControlCause.BLIND)
    assert not controller.control_state(T0 + 1005.0, waiting()).armed, "a sample must strike first"


def test_rejections_beside_no_sample_count_at_the_next_one() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), quiet(), WORK, T0 + n)
        controller.control_state(T0 + n + 0.5, waiting())
    assert not controller.control_state(T0 + 3.0).armed
    assert controller.observe(view(96.0), quiet(), WORK, T0 + 3.0).armed


def test_a_lost_device_lowers_what_a_cut_leaves_but_cuts_nothing_by_itself() -> None:
    controller = adaptive()
    assert see(controller, view(50.0, 0.5), T0).factor == 1.0
    for n in range(3):
        regime = controller.observe(view(91.0, 0.5), waiting(), WORK, T0 + n)
    assert regime.budget_rps == pytest.approx(320.0)
    assert regime.factor == pytest.approx(0.2)
    assert regime.tier == 0.4
    assert regime.ceilings == pytest.approx((0.2, 0.23, 1.0))
    regime = controller.observe(view(50.0, 0.05), waiting(), WORK, T0 + 3)
    assert regime.budget_rps == pytest.approx(80.0), "never more than what is left of the nominal rates"


def test_last_device_lost_rejects_all_until_it_recovers() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    regime = controller.observe(view(None, 0.0), quiet(), WORK, T0 + 3)
    assert (regime.factor, regime.ceilings, regime.cause) == (0.0, (0.0, 0.0, 0.0), ControlCause.LOST)
    assert (regime.budget_rps, regime.armed) == (None, False)
    assert (regime.may_rise_at_s, regime.valid_until_s) == (T0 + 6, T0 + 4)
    assert controller.control_state(T0 + 3.4).may_rise_at_s == T0 + 6
    assert controller.control_state(T0 + 4.5).may_rise_at_s == T0 + 7.5, (
        "overdue: three samples, the first in a second"
    )
    back = [controller.observe(view(50.0), waiting(), WORK, T0 + 5 + n) for n in range(3)]
    assert [(regime.factor, regime.cause, regime.may_rise_at_s) for regime in back[:2]] == [
        (0.0, ControlCause.LOST, T0 + 7)
    ] * 2
    assert back[2].factor == pytest.approx(115.0 / N), "held until two quiet samples"
    assert back[2].may_rise_at_s == 0.0
    assert [controller.observe(view(50.0), quiet(), WORK, T0 + 8 + n).factor for n in range(2)] == [
        pytest.approx(115.0 / N),
        1.0,
    ]


def test_device_recovered_for_two_samples_admits_nothing() -> None:
    controller = adaptive()
    capacities = [1.0, 0.0, *[0.5, 0.5, 0.0] * 9, 0.25, 0.5, 0.25]
    factors = [see(controller, view(50.0, left), T0 + n).factor for n, left in enumerate(capacities)]
    assert factors == [1.0, *[0.0] * (len(factors) - 2), 1.0], "one card of several is a door fully open"


def test_drifted_factor_is_kept_at_the_first_device() -> None:
    """Two ways to jump: back to nothing, since one sample is not three; or to all, since a card is there."""
    controller = adaptive()
    see(controller, view(50.0), T0)
    see(controller, view(None, 0.0), T0 + 1)
    drifted = controller.control_state(T0 + 17.5).factor
    assert drifted == pytest.approx(0.5)
    back = [see(controller, view(50.0, 0.25), T0 + 17.5 + n) for n in range(3)]
    assert [regime.factor for regime in back] == [drifted, drifted, 1.0]


def test_rejection_of_all_is_rechecked_at_the_next_view() -> None:
    controller = adaptive()
    see(controller, view(50.0), T0)
    assert see(controller, view(None, 0.0), T0 + 0.25).valid_until_s == T0 + 1.25


@pytest.mark.parametrize(
    ("unknown", "opens"),
    [(MissingTelemetryMode.OPEN, 1.0), (MissingTelemetryMode.LAST, 0.0), (MissingTelemetryMode.CLOSED, 1.0)],
)
def test_rejection_after_a_loss_drifts_open_without_reads(
    unknown: MissingTelemetryMode, opens: float
) -> None:
    controller = adaptive(unknown=unknown)
    see(controller, view(50.0), T0)
    see(controller, view(None, 0.0), T0 + 1)
    regimes = [controller.control_state(T0 + 1 + second) for second in range(40)]
    factors = [regime.factor for regime in regimes]
    assert factors[:4] == [0.0] * 4
    assert factors == sorted(factors)
    assert factors[31:] == [opens] * 9
    assert max(b - a for a, b in itertools.pairwise(factors)) < 0.05
    assert all(regime.ceilings == (regime.factor,) * 3 for regime in regimes)


def test_without_a_source_the_limiter_acts_alone() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    regime = no_source(controller, T0 + 3)
    assert (regime.cause, regime.telemetry, regime.valid_until_s) == (
        ControlCause.NO_DEVICE,
        TelemetryState.NONE,
        math.inf,
    )
    assert (regime.factor, regime.budget_rps, regime.ceilings) == (1.0, None, (1.0, 1.0, 1.0))
    assert (regime.armed, regime.table_factor, regime.load) == (False, 1.0, 1.0)


def test_without_a_source_an_earlier_loss_rejects_nothing() -> None:
    controller = adaptive()
    see(controller, view(None, 0.0), T0)
    assert no_source(controller, T0 + 1).factor == 1.0


def test_a_source_that_is_gone_releases_without_overload() -> None:
    controller = adaptive(unknown=MissingTelemetryMode.CLOSED)
    for n in range(3):
        assert controller.observe(view(86.0), waiting(), WORK, T0 + n).table_factor > 0.0
    regime = source_lost(controller, T0 + 2.5)
    assert (regime.cause, regime.armed) == (ControlCause.BLIND, True), "the limiter confirmed it just now"
    regime = controller.control_state(T0 + 4.5)
    assert (regime.cause, regime.factor, regime.budget_rps) == (ControlCause.BLIND, 1.0, None)
    assert regime.table_factor == 0.0, "the literal table would be shut"


def test_the_first_sample_is_due_from_the_start_of_the_reading() -> None:
    controller = adaptive(unknown=MissingTelemetryMode.CONSERVATIVE)
    assert controller.control_state(T0 + 60.0).telemetry is TelemetryState.BLIND
    controller.tracker.started(T0 + 60.0)
    regime = controller.control_state(T0 + 60.0)
    assert (regime.telemetry, regime.table_factor) == (TelemetryState.STARTING, 1.0)


# --- the signal in force ---


def test_it_acts_on_the_pressure_where_that_is_the_signal() -> None:
    controller = adaptive(ControlSettings(signal=Signal.PRESSURE))
    seen: list[GpuView] = [view(10.0, memory=fill) for fill in (0.4, 0.9, 0.9, 0.9)]
    for n, shown in enumerate(seen):
        regime = controller.observe(shown, waiting(), ServiceStats(p95_s=1.8, slo_s=2.0), T0 + n)
    assert (regime.signal, regime.term) == (Signal.PRESSURE, "memory")
    assert regime.load == pytest.approx(0.9 / 0.92)
    assert regime.tier == 0.0
    assert regime.budget_rps == pytest.approx(115.0)
    assert controller.tracker.pressure.terms == pytest.approx({"memory": 0.9 / 0.92, "latency": 0.9})


def test_a_pressure_of_which_nothing_is_known_is_no_signal() -> None:
    controller = adaptive(ControlSettings(signal=Signal.PRESSURE))
    regimes = [controller.observe(view(99.0), waiting(), WORK, T0 + n) for n in range(8)]
    assert {regime.armed for regime in regimes} == {False}
    assert {regime.term for regime in regimes} == {"unknown"}
    assert regimes[-1].telemetry is TelemetryState.BLIND


def test_the_same_view_again_is_no_new_sample() -> None:
    controller = adaptive()
    hot = replace(view(99.0), taken_at_s=T0)
    assert [controller.observe(hot, waiting(), WORK, T0 + n / 10).cause for n in range(5)] == [
        ControlCause.STRIKE
    ] * 5
