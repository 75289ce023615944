"""The policies that leave the rates alone, and which policy is which controller."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autoglm_throttle import Settings
from autoglm_throttle.admission import factory
from autoglm_throttle.control.adaptive import AdaptiveController, Controller
from autoglm_throttle.control.tiers import NominalController, TierController
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    LimiterReport,
    MissingTelemetryMode,
    Policy,
    ServiceStats,
    Signal,
    TelemetryState,
)
from tests.control.views import T0, no_source, see, source_lost, view, waiting

WORK = ServiceStats()
PRESSURE = ControlSettings(signal=Signal.PRESSURE)


def chosen(policy: Policy, **settings: Any) -> Controller:
    return factory.controller(Settings(policy=policy, **settings), T0)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (Policy.ADAPTIVE, AdaptiveController),
        (Policy.TIERS, TierController),
        (Policy.CONCURRENCY, NominalController),
        (Policy.FIXED, NominalController),
    ],
)
def test_each_policy_has_its_controller(policy: Policy, kind: type) -> None:
    assert type(chosen(policy)) is kind


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_speaks_the_same_language(policy: Policy) -> None:
    controller = chosen(policy)
    assert controller.tracker.pressure.value is None
    controller.tracker.started(T0 + 1)
    states = [
        controller.observe(view(50.0, memory=0.46), waiting(), WORK, T0 + 2),
        controller.control_state(T0 + 3),
        controller.control_state(T0 + 3, waiting()),
        source_lost(controller, T0 + 4),
        no_source(controller, T0 + 5),
    ]
    assert [r.telemetry.value for r in states] == ["fresh", "fresh", "fresh", "blind", "none"]
    for state in states:
        assert (state.factor, state.ceilings, state.budget_rps) == (1.0, (1.0, 1.0, 1.0), None)
        assert (state.signal, state.term) == (Signal.UTILIZATION, "utilization")
    assert controller.tracker.pressure.terms == {"memory": 0.5}


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_follows_the_literal_table(policy: Policy) -> None:
    controller = chosen(policy)
    reported = [see(controller, view(96.0), T0 + n).table_factor for n in range(3)]
    assert reported == [1.0, 1.0, 0.0]
    blind = controller.control_state(T0 + 60.0).table_factor
    # The default of GPU_UNKNOWN is last under tiers, else open.
    assert blind == (0.0 if policy is Policy.TIERS else 1.0)


@pytest.mark.parametrize(
    ("policy", "factor", "why"),
    [
        (Policy.ADAPTIVE, 0.0, ControlCause.LOST),
        (Policy.TIERS, 0.0, ControlCause.LOST),
        (Policy.CONCURRENCY, 1.0, ControlCause.POLICY),
        (Policy.FIXED, 1.0, ControlCause.POLICY),
    ],
)
def test_factor_after_the_last_device_loss_by_policy(
    policy: Policy, factor: float, why: ControlCause
) -> None:
    controller = chosen(policy)
    see(controller, view(50.0), T0)
    state = see(controller, view(None, 0.0), T0 + 1)
    assert (state.factor, state.ceilings, state.cause) == (factor, (factor,) * 3, why)


# --- tiers: what it says beside the factor ---


def test_under_tiers_every_class_has_the_same_ceiling_and_the_table_is_armed() -> None:
    controller = TierController(ControlSettings(), GpuSettings(), T0)
    for n in range(3):
        state = see(controller, view(91.0, 0.5), T0 + n)
    assert state.ceilings == (0.2, 0.2, 0.2)
    assert (state.factor, state.table_factor, state.budget_rps, state.armed) == (0.2, 0.2, None, True)
    assert no_source(controller, T0 + 3).armed is False


def test_under_tiers_the_pressure_moves_the_bands() -> None:
    controller = TierController(PRESSURE, GpuSettings(), T0)
    slow = ServiceStats(p95_s=3.0, slo_s=2.0)
    for n in range(3):
        state = controller.observe(view(10.0), LimiterReport(), slow, T0 + n)
    assert (state.factor, state.load, state.signal, state.term) == (0.0, 1.0, Signal.PRESSURE, "latency")


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_names_the_signal_and_the_term(policy: Policy) -> None:
    controller = chosen(policy, signal=Signal.PRESSURE)
    assert controller.control_state(T0).term == "unknown"
    state = controller.observe(view(10.0), LimiterReport(), ServiceStats(p95_s=1.0, slo_s=2.0), T0)
    assert (state.signal, state.term) == (Signal.PRESSURE, "latency")


def test_term_is_reported_while_its_signal_is_held() -> None:
    controller = TierController(PRESSURE, GpuSettings(), T0)
    controller.observe(view(10.0), LimiterReport(), ServiceStats(p95_s=1.0, slo_s=2.0), T0)
    state = controller.observe(view(10.0), LimiterReport(), WORK, T0 + 1)
    assert (state.load, state.term) == (0.5, "latency")
    assert controller.tracker.pressure.term == "unknown"


# --- gate and fixed ---


@pytest.mark.parametrize(
    ("in_flight", "limit", "load"), [(16, 64.0, 0.25), (70, 64.0, 1.0), (9, math.inf, 0.0)]
)
def test_under_concurrency_the_load_is_the_occupancy(in_flight: int, limit: float, load: float) -> None:
    word = LimiterReport(in_flight=in_flight, limit=limit)
    observed = chosen(Policy.CONCURRENCY)
    assert observed.observe(view(99.0), word, WORK, T0).load == load
    asked = chosen(Policy.CONCURRENCY)
    assert no_source(asked, T0).load == 0.0
    assert asked.control_state(T0 + 1, word).load == load
    assert asked.control_state(T0 + 2).load == source_lost(asked, T0 + 3).load == load


@pytest.mark.parametrize("policy", [Policy.FIXED, Policy.CONCURRENCY])
def test_rates_stay_nominal_and_telemetry_age_is_reported(policy: Policy) -> None:
    controller = chosen(policy, gpu_unknown=MissingTelemetryMode.CLOSED)
    hot = replace(view(100.0, 0.0), taken_at_s=T0 + 1)
    states: list[ControlState] = [
        controller.control_state(T0),
        see(controller, hot, T0 + 1),
        controller.control_state(T0 + 10),
        controller.control_state(T0 + 100),
        no_source(controller, T0 + 101),
    ]
    assert [state.telemetry for state in states] == [
        TelemetryState.STARTING,
        TelemetryState.FRESH,
        TelemetryState.STALE,
        TelemetryState.BLIND,
        TelemetryState.NONE,
    ]
    controller.tracker.started(T0 + 102)
    load = None if policy is Policy.FIXED else 0.0
    for state in [*states, source_lost(controller, T0 + 103)]:
        assert (state.factor, state.tier, state.load, state.cause) == (
            1.0,
            1.0,
            load,
            ControlCause.POLICY,
        )
        assert (state.since_s, state.armed) == (T0, False)
