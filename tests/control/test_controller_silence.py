"""What happens when samples stay away, stand still, or never come."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoglm_throttle.control.staleness import BLEND_STEP_S, STARTING_S
from autoglm_throttle.control.tiers import TierController
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.types import ControlCause, GpuView, MissingTelemetryMode, Signal, TelemetryState
from tests.control.slow_table import SlowTable
from tests.control.views import T0, feed, held_at, no_source, see, source_lost, staleness, tiers, view


def test_a_view_no_younger_than_the_last_is_no_new_signal() -> None:
    controller = tiers()
    hot = replace(view(99.0), taken_at_s=T0)
    for tick in range(3):
        assert see(controller, hot, T0 + tick).factor == 1.0
    assert controller.control_state(T0 + 2.5).telemetry is TelemetryState.LATE
    assert see(controller, replace(hot, taken_at_s=T0 - 1.0), T0 + 4.0).telemetry is TelemetryState.STALE


def test_the_age_of_a_signal_counts_from_when_it_was_taken() -> None:
    controller = tiers()
    see(controller, replace(view(50.0), taken_at_s=T0), T0 + 2.5)
    assert controller.control_state(T0 + 2.5).telemetry is TelemetryState.LATE


@pytest.mark.parametrize("factor", [1.0, 0.7, 0.4, 0.0])
@pytest.mark.parametrize("unknown", MissingTelemetryMode)
def test_missing_telemetry_goes_through_all_states(factor: float, unknown: MissingTelemetryMode) -> None:
    controller, last = held_at(factor, unknown)
    assumed = {
        MissingTelemetryMode.OPEN: 1.0,
        MissingTelemetryMode.LAST: factor,
        MissingTelemetryMode.CONSERVATIVE: 0.7,
        MissingTelemetryMode.CLOSED: 0.0,
    }[unknown]
    expected = [
        (2.0, TelemetryState.FRESH, factor),
        (2.001, TelemetryState.LATE, factor),
        (3.0, TelemetryState.LATE, factor),
        (3.001, TelemetryState.STALE, factor),
        (16.5, TelemetryState.STALE, (factor + assumed) / 2),
        (30.0, TelemetryState.STALE, assumed),
        (30.001, TelemetryState.BLIND, assumed),
        (1e6, TelemetryState.BLIND, assumed),
    ]
    for age, state, then in expected:
        regime = controller.control_state(last + age)
        assert regime.telemetry is state
        assert regime.factor == pytest.approx(then, abs=1e-3)
        assert regime.tier == factor, "the table's own factor stays"
        cause = {TelemetryState.STALE: ControlCause.STALE, TelemetryState.BLIND: ControlCause.BLIND}.get(
            state
        )
        assert regime.cause is cause or cause is None
        assert (regime.load is None) is (state is TelemetryState.BLIND)


@pytest.mark.parametrize("factor", [1.0, 0.7, 0.4, 0.0])
@pytest.mark.parametrize("unknown", MissingTelemetryMode)
def test_no_answer_changes_before_until_s_and_none_jumps(
    factor: float, unknown: MissingTelemetryMode
) -> None:
    controller, last = held_at(factor, unknown)
    regime = controller.control_state(last)
    largest = abs(staleness(gpu_unknown=unknown).assumed(factor) - factor) * BLEND_STEP_S / 27.0 + 1e-9
    seen, now = {regime.telemetry}, last
    for _ in range(400):
        if regime.valid_until_s == math.inf:
            break
        assert regime.valid_until_s >= now
        just_before = copy.deepcopy(controller).control_state(math.nextafter(regime.valid_until_s, 0.0))
        assert just_before.telemetry is regime.telemetry
        assert abs(just_before.factor - regime.factor) <= largest
        if regime.telemetry is not TelemetryState.STALE:
            assert just_before.factor == regime.factor
        now = max(math.nextafter(regime.valid_until_s, math.inf), now)
        following = controller.control_state(now)
        assert abs(following.factor - regime.factor) <= largest, "never silently open or shut"
        regime = following
        seen.add(regime.telemetry)
    assert regime.telemetry is TelemetryState.BLIND or regime.factor == 0.0
    assert seen >= {TelemetryState.FRESH, TelemetryState.LATE, TelemetryState.STALE}


def test_last_telemetry_state_has_a_recheck_time() -> None:
    controller, last = held_at(0.4, MissingTelemetryMode.OPEN)
    assert controller.control_state(last + 29.9).valid_until_s == last + 30.0
    assert controller.control_state(last + 20.0).valid_until_s == last + 20.0 + BLEND_STEP_S


@pytest.mark.parametrize(
    ("unknown", "starting", "blind"),
    [
        (MissingTelemetryMode.OPEN, 1.0, 1.0),
        (MissingTelemetryMode.LAST, 1.0, 1.0),
        (MissingTelemetryMode.CONSERVATIVE, 1.0, 0.7),
        (MissingTelemetryMode.CLOSED, 0.0, 0.0),
    ],
)
def test_a_first_sample_that_never_comes(
    unknown: MissingTelemetryMode, starting: float, blind: float
) -> None:
    controller = tiers(unknown=unknown)
    regime = controller.control_state(T0 + STARTING_S)
    assert (regime.telemetry, regime.factor, regime.load) == (TelemetryState.STARTING, starting, None)
    regime = controller.control_state(T0 + STARTING_S + 0.001)
    assert (regime.telemetry, regime.factor, regime.cause) == (
        TelemetryState.BLIND,
        blind,
        ControlCause.BLIND,
    )
    if starting:
        assert controller.control_state(T0 + 1).valid_until_s == T0 + STARTING_S
    if blind:
        assert regime.valid_until_s == math.inf


def test_the_first_sample_is_due_from_the_start_of_the_reading() -> None:
    controller = tiers(unknown=MissingTelemetryMode.CONSERVATIVE)
    assert controller.control_state(T0 + 60.0).telemetry is TelemetryState.BLIND
    controller.tracker.started(T0 + 60.0)
    regime = controller.control_state(T0 + 60.0)
    assert (regime.telemetry, regime.factor, regime.valid_until_s) == (
        TelemetryState.STARTING,
        1.0,
        T0 + 60.0 + STARTING_S,
    )
    assert controller.control_state(T0 + 60.1 + STARTING_S).telemetry is TelemetryState.BLIND


def test_a_start_makes_no_old_sample_new() -> None:
    controller, last = held_at(0.4, MissingTelemetryMode.CONSERVATIVE)
    controller.tracker.started(last + 100.0)
    assert controller.control_state(last + 100.0).telemetry is TelemetryState.BLIND


def test_the_first_sample_opens_a_closed_start() -> None:
    controller = tiers(unknown=MissingTelemetryMode.CLOSED)
    assert controller.control_state(T0).factor == 0.0
    assert see(controller, view(50), T0 + 1).factor == 1.0


@pytest.mark.parametrize("away_s", [3.001, 16.5, 100.0])
@pytest.mark.parametrize(
    ("factor", "unknown", "signal"),
    [
        (0.0, MissingTelemetryMode.OPEN, 10.0),
        (1.0, MissingTelemetryMode.CLOSED, 10.0),
        (1.0, MissingTelemetryMode.CONSERVATIVE, 99.0),
        (0.4, MissingTelemetryMode.LAST, 10.0),
    ],
)
def test_after_an_outage_three_new_samples_are_needed(
    away_s: float, factor: float, unknown: MissingTelemetryMode, signal: float
) -> None:
    controller, last = held_at(factor, unknown)
    back = last + away_s
    during = controller.control_state(back).factor
    first = see(controller, view(signal), back)
    second = see(controller, view(signal), back + 1)
    assert first.telemetry is second.telemetry is TelemetryState.FRESH
    assert first.factor == second.factor == during, "no jump when telemetry is back"
    assert see(controller, view(signal), back + 2).factor == (1.0 if signal == 10.0 else 0.0)


@given(
    hysteresis=st.builds(
        ControlSettings,
        tier_release_samples=st.integers(1, 3),
        tier_recovery_step=st.sampled_from([0.1, 1.0]),
    ),
    unknown=st.sampled_from(MissingTelemetryMode),
    runs=st.lists(
        st.tuples(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.floats(0.0, 40.0)), max_size=6
    ),
)
def test_outages_and_samples_in_any_order_follow_the_slow_table(
    hysteresis: ControlSettings, unknown: MissingTelemetryMode, runs: list[tuple[list[float], float]]
) -> None:
    controller = tiers(hysteresis, unknown)
    slow = SlowTable(
        ControlSettings().tiers, hysteresis, factor=0.0 if unknown is MissingTelemetryMode.CLOSED else 1.0
    )
    ladder, now = staleness(gpu_unknown=unknown), T0
    for samples, away_s in runs:
        for pct in samples:
            assert see(controller, view(pct), now).factor == pytest.approx(slow.sample(pct), abs=1e-12)
            now += 1.0
        now += away_s
        if away_s + 1.0 > ladder.stale_s:
            slow.resume(ladder.factor(slow.factor, away_s + 1.0))
        assert controller.control_state(now).factor == pytest.approx(
            ladder.factor(controller.control_state(now).tier, away_s + 1.0), abs=1e-12
        )


def test_strikes_from_before_an_outage_do_not_count() -> None:
    controller = tiers()
    assert feed(controller, 96, 96) == [1, 1]
    assert feed(controller, 96, 96, 96, start=T0 + 10) == [1, 1, 0]


def test_late_samples_change_nothing_and_need_no_new_trust() -> None:
    controller = tiers()
    feed(controller, 96, 96)
    assert controller.control_state(T0 + 4.0).telemetry is TelemetryState.LATE
    assert see(controller, view(96), T0 + 4.0).factor == 0.0, "the third strike"


def test_gone_is_blind_at_once_and_a_sample_brings_it_back() -> None:
    controller, last = held_at(0.0, MissingTelemetryMode.OPEN)
    regime = source_lost(controller, last + 0.5)
    assert (regime.telemetry, regime.factor, regime.cause) == (TelemetryState.BLIND, 1.0, ControlCause.BLIND)
    assert (regime.load, regime.valid_until_s) == (None, math.inf)
    assert see(controller, view(50), last + 1).factor == 1.0


def test_gone_before_any_sample_ends_the_start() -> None:
    assert source_lost(tiers(unknown=MissingTelemetryMode.CONSERVATIVE), T0).factor == 0.7


def test_lost_source_at_factor_0_keeps_a_recheck_time() -> None:
    controller, last = held_at(0.4, MissingTelemetryMode.CLOSED)
    regime = source_lost(controller, last)
    assert (regime.factor, regime.may_rise_at_s, regime.valid_until_s) == (0.0, last + 1, last + 1)


@pytest.mark.parametrize("unknown", MissingTelemetryMode)
def test_no_source_at_all_is_not_blind(unknown: MissingTelemetryMode) -> None:
    regime = no_source(tiers(unknown=unknown), T0 + 1)
    assert (regime.factor, regime.tier, regime.load) == (1.0, 1.0, None)
    assert (regime.telemetry, regime.cause, regime.valid_until_s) == (
        TelemetryState.NONE,
        ControlCause.NO_DEVICE,
        math.inf,
    )


def test_a_source_that_turns_up_after_all_is_followed() -> None:
    controller = tiers()
    no_source(controller, T0)
    assert feed(controller, 96, 96, 96, start=T0 + 100) == [1, 1, 0]
    assert no_source(controller, T0 + 103).factor == 1.0


# --- when a shut door may open ---


def test_rejection_of_all_names_the_next_sample() -> None:
    controller = tiers()
    feed(controller, 96, 96, 96)
    regime = controller.control_state(T0 + 2.4)
    assert (regime.factor, regime.may_rise_at_s, regime.valid_until_s) == (0.0, T0 + 3, T0 + 3)
    overdue = controller.control_state(T0 + 3.5)
    assert overdue.may_rise_at_s == T0 + 4.5, "one interval from now if none can be foreseen"
    assert see(controller, view(50), T0 + 4).may_rise_at_s == 0.0


def test_reopening_never_lies_in_the_past() -> None:
    controller, last = held_at(0.0, MissingTelemetryMode.LAST)
    for tenths in range(400):
        now = last + tenths / 10
        regime = controller.control_state(now)
        assert now <= regime.valid_until_s <= regime.may_rise_at_s > now


@given(
    hysteresis=st.builds(
        ControlSettings,
        tier_release_samples=st.integers(1, 4),
        tier_recovery_step=st.sampled_from([0.25, 1.0]),
    ),
    calm_before=st.integers(0, 2),
    hot_after=st.integers(0, 1),
    outage=st.booleans(),
    loss=st.sampled_from(["none", "with a signal", "without"]),
)
@example(
    hysteresis=ControlSettings(tier_release_samples=3),
    calm_before=2,
    hot_after=0,
    outage=False,
    loss="without",
)
def test_the_first_sample_that_could_raise_the_factor_is_named_exactly(
    hysteresis: ControlSettings, calm_before: int, hot_after: int, outage: bool, loss: str
) -> None:
    controller = tiers(hysteresis, MissingTelemetryMode.CLOSED)
    now, capacity = T0, 1.0
    for pct in (
        99.0,
        99.0,
        99.0,
        *[50.0] * min(calm_before, hysteresis.tier_release_samples - 1),
        *[99.0] * hot_after,
    ):
        see(controller, view(pct), now)
        now += 1.0
    if loss != "none":
        capacity = 0.5
        now -= 1.0 if loss == "without" else 0.0
        see(controller, view(None if loss == "without" else 99.0, capacity), now)
        now += 1.0
    if outage:
        now += 50.0
        see(controller, view(99.0, capacity), now)
        now += 1.0
    promised = controller.control_state(now - 1.0)
    if promised.factor:
        return
    while not see(controller, view(10.0, capacity), now).factor:
        now += 1.0
    assert promised.may_rise_at_s == now


class TestAllLost:
    """The last device is gone: shut as long as that is what the reads say, and not for ever after."""

    def rejecting_all(self, unknown: MissingTelemetryMode = MissingTelemetryMode.OPEN) -> TierController:
        controller = tiers(unknown=unknown)
        see(controller, view(50.0), T0)
        see(controller, view(None, capacity=0.0), T0 + 1.0)
        return controller

    def test_factor_0_stays_while_reads_continue(self) -> None:
        controller = self.rejecting_all()
        for second in range(2, 100):
            regime = see(controller, view(None, capacity=0.0), T0 + second)
            assert (regime.factor, regime.cause) == (0.0, ControlCause.LOST)

    def test_opens_by_and_by_once_the_reads_end(self) -> None:
        controller = self.rejecting_all()
        factors = [controller.control_state(T0 + 1.0 + second).factor for second in range(40)]
        assert factors[:4] == [0.0] * 4
        assert factors == sorted(factors)
        assert max(b - a for a, b in itertools.pairwise(factors)) < 0.05
        assert factors[31:] == [1.0] * 9
        assert controller.control_state(T0 + 100.0).valid_until_s == math.inf

    def test_what_is_assumed_decides(self) -> None:
        assert self.rejecting_all(MissingTelemetryMode.LAST).control_state(T0 + 100.0).factor == 0.0
        assert self.rejecting_all(MissingTelemetryMode.CLOSED).control_state(T0 + 100.0).factor == 0.0
        assert self.rejecting_all(MissingTelemetryMode.CONSERVATIVE).control_state(T0 + 100.0).factor == 0.7

    @pytest.mark.parametrize("reported", [50.0, None])
    @pytest.mark.parametrize("left", [0.0, 0.5])
    def test_each_control_state_has_its_end_of_validity(self, reported: float | None, left: float) -> None:
        controller = tiers()
        see(controller, view(reported), T0)
        see(controller, view(None, capacity=left), T0 + 1.0)
        now = T0 + 1.0
        while now < T0 + 60.0:
            regime = controller.control_state(now)
            just_before = min(regime.valid_until_s, now + 5.0) - 1e-6
            assert abs(controller.control_state(just_before).factor - regime.factor) < 0.02
            now = min(regime.valid_until_s, now + 5.0) + 1e-6


# --- the engines fall silent beside their devices (FIELD 11) ---


def _beside(pct: float, *, engine_s: float, at_s: float, kv: float = 0.736) -> GpuView:
    """Devices measured now, and an engine measured at ``engine_s``, its cache at 92 % of the target."""
    shown = replace(view(pct), taken_at_s=at_s, engines_at_s=engine_s)
    return replace(shown, kv_used_ratio=kv, queued=0, engines=1) if engine_s == at_s else shown


def _vanished(unknown: MissingTelemetryMode) -> TierController:
    """A controller that holds 0.4 by its engine, which was last measured at T0 + 2."""
    controller = tiers(unknown=unknown)
    for n in range(3):
        state = see(controller, _beside(60.0, engine_s=T0 + n, at_s=T0 + n), T0 + n)
    assert (state.factor, state.signal) == (0.4, Signal.PRESSURE)
    return controller


@pytest.mark.parametrize("unknown", MissingTelemetryMode)
def test_factor_of_a_vanished_engine_stays_a_ceiling(unknown: MissingTelemetryMode) -> None:
    controller = _vanished(unknown)
    assumed = staleness(gpu_unknown=unknown).assumed(0.4)
    for age in range(1, 60):
        now = T0 + 2 + age
        state = see(controller, _beside(60.0, engine_s=T0 + 2, at_s=now), now)
        ceiling = staleness(gpu_unknown=unknown).factor(0.4, age)
        # The devices' first three samples may not raise it at all.
        assert state.factor == pytest.approx(ceiling, abs=0.05 if age in {5, 6} else 1e-6)
        assert state.factor <= ceiling + 1e-6
        assert state.valid_until_s >= now
    assert state.factor == pytest.approx(assumed)
    assert (state.signal, state.telemetry) == (Signal.UTILIZATION, TelemetryState.FRESH)
    assert state.cause is (ControlCause.HELD if assumed < 1.0 else ControlCause.CALM)
    assert state.tier == pytest.approx(assumed)


def test_another_signal_may_lower_the_ceiling_and_not_raise_it() -> None:
    controller = _vanished(MissingTelemetryMode.LAST)
    pcts = [60.0] * 6 + [99.0] * 4 + [60.0] * 4
    states = [
        see(controller, _beside(pct, engine_s=T0 + 2, at_s=T0 + 3 + n), T0 + 3 + n)
        for n, pct in enumerate(pcts)
    ]
    assert [state.factor for state in states] == [0.4] * 8 + [0.0] * 2 + [0.4] * 4
    assert states[9].cause is ControlCause.TIER


def test_engine_that_is_back_needs_three_samples_to_raise_the_factor() -> None:
    controller = _vanished(MissingTelemetryMode.LAST)
    for n in range(6):
        see(controller, _beside(60.0, engine_s=T0 + 2, at_s=T0 + 3 + n), T0 + 3 + n)
    factors = [
        see(controller, _beside(60.0, engine_s=now, at_s=now, kv=0.16), now).factor
        for now in (T0 + 9, T0 + 10, T0 + 11, T0 + 12)
    ]
    assert factors == [0.4, 0.4, 1.0, 1.0]


def test_ceiling_of_zero_tells_when_to_come_back() -> None:
    controller = tiers(unknown=MissingTelemetryMode.LAST)
    for n in range(3):
        see(controller, _beside(60.0, engine_s=T0 + n, at_s=T0 + n, kv=0.9), T0 + n)
    for n in range(3, 9):
        state = see(controller, _beside(60.0, engine_s=T0 + 2, at_s=T0 + n), T0 + n)
    assert (state.factor, state.signal) == (0.0, Signal.UTILIZATION)
    assert T0 + 8 < state.may_rise_at_s <= T0 + 12
    assert state.valid_until_s <= state.may_rise_at_s


def test_engine_without_one_of_its_terms_gives_no_sample() -> None:
    """An upgrade renames the queue; the cache alone would look like relief."""
    controller = _vanished(MissingTelemetryMode.LAST)
    for n in range(3, 60):
        shown = _beside(60.0, engine_s=T0 + n, at_s=T0 + n)
        state = see(controller, replace(shown, queued=None, kv_used_ratio=0.1), T0 + n)
    assert (state.factor, state.signal, state.telemetry) == (0.4, Signal.PRESSURE, TelemetryState.BLIND)
