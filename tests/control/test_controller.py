"""The literal table with its hysteresis, lost devices, and what happens when samples stay away."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoglm_throttle.control.controller import (
    BLEND_STEP_S,
    LOSS_HOLD_S,
    FixedController,
    Hysteresis,
    TierController,
)
from autoglm_throttle.control.staleness import STARTING_S, Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.model import GpuView, Regime, Telemetry, Unknown, Why
from tests.control.slow_table import SlowTable

T0 = 1000.0

_INSTANTS = itertools.count(1e9)
"""Every view is younger than the last, and none is older than the time at which it is observed."""


def view(pct: float | None, capacity: float = 1.0) -> GpuView:
    return GpuView(
        taken_at_s=next(_INSTANTS),
        utilization_pct=pct,
        utilization_max_pct=pct,
        memory_ratio=None,
        power_ratio=None,
        capacity=capacity,
        devices=(),
    )


def test_a_view_no_younger_than_the_last_is_no_new_signal() -> None:
    controller = tiers()
    hot = replace(view(99.0), taken_at_s=T0)
    for tick in range(3):
        assert controller.observe(hot, T0 + tick).factor == 1.0
    assert controller.regime(T0 + 2.5).telemetry is Telemetry.LATE
    assert controller.observe(replace(hot, taken_at_s=T0 - 1.0), T0 + 4.0).telemetry is Telemetry.STALE


def test_the_age_of_a_signal_counts_from_when_it_was_taken() -> None:
    controller = tiers()
    controller.observe(replace(view(50.0), taken_at_s=T0), T0 + 2.5)
    assert controller.regime(T0 + 2.5).telemetry is Telemetry.LATE


def tiers(
    rules: Hysteresis | None = None, unknown: Unknown = Unknown.OPEN, interval_s: float = 1.0
) -> TierController:
    return TierController(
        TierTable(),
        rules or Hysteresis(),
        Staleness(interval_s, unknown=unknown),
        interval_s=interval_s,
        now=T0,
    )


def feed(controller: TierController, *samples: float | None, start: float = T0) -> list[float]:
    """One sample a second from ``start`` on; the factor after each."""
    return [controller.observe(view(pct), start + n).factor for n, pct in enumerate(samples)]


def held_at(factor: float, unknown: Unknown) -> tuple[TierController, float]:
    """A controller whose table holds ``factor``, and the instant of its last sample."""
    controller = tiers(unknown=unknown)
    pct = {1.0: 10.0, 0.7: 88.0, 0.4: 92.0, 0.0: 99.0}[factor]
    assert feed(controller, pct, pct, pct)[-1] == factor
    return controller, T0 + 2


# --- the table of the design ---

SLOW_RELEASE = Hysteresis(release_samples=3, release_margin_pct=5.0, recovery_step=0.1)


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
    ("rules", "samples", "factors"),
    [
        (SLOW_RELEASE, [96, 96, 96, 88, 88, 88, 80, 80, 80], [1, 1, 0, 0, 0, 0.1, 0.2, 0.3, 0.4]),
        (SLOW_RELEASE, [96, 96, 96, 88, 88, 96, 88, 88, 88], [1, 1, 0, 0, 0, 0, 0, 0, 0.1]),
        (SLOW_RELEASE, [91, 91, 91, 85, 85, 85, 85], [1, 1, 0.4, 0.4, 0.4, 0.5, 0.6]),
        (SLOW_RELEASE, [91, 91, 91, 86, 86, 86, 86], [1, 1, 0.4, 0.4, 0.4, 0.4, 0.4]),
        (Hysteresis(samples=1), [96, 91, 86, 50, 99], [0, 0.4, 0.7, 1, 0]),
        (Hysteresis(samples=5), [96] * 6, [1, 1, 1, 1, 0, 0]),
        (Hysteresis(release_samples=2), [96, 96, 96, 50, 50, 50], [1, 1, 0, 0, 1, 1]),
        (Hysteresis(recovery_step=0.5), [96, 96, 96, 50, 50, 50], [1, 1, 0, 0.5, 1, 1]),
    ],
)
def test_hysteresis_on_the_way_back(rules: Hysteresis, samples: list[float], factors: list[float]) -> None:
    assert feed(tiers(rules), *samples) == pytest.approx(factors)


@given(
    rules=st.builds(
        Hysteresis,
        samples=st.integers(1, 5),
        release_samples=st.integers(1, 4),
        release_margin_pct=st.sampled_from([0.0, 3.0, 5.0, 20.0]),
        recovery_step=st.sampled_from([0.05, 0.3, 1.0]),
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
def test_it_follows_the_slow_table(rules: Hysteresis, samples: list[float | None]) -> None:
    controller, slow = tiers(rules, interval_s=60.0), SlowTable(TierTable().steps, rules)
    factor = 1.0
    for n, pct in enumerate(samples):
        if pct is not None and 0 <= pct <= 100:
            factor = slow.sample(pct)
        regime = controller.observe(view(pct), T0 + n)
        assert regime.factor == regime.tier == factor
        assert 0.0 <= regime.factor <= 1.0


@pytest.mark.parametrize(
    ("samples", "causes"),
    [
        ([10, 86, 86, 86, 86, 50, 50], "calm strike strike tier tier released calm"),
        ([96, 96, 96, 94], "strike strike tier released"),
    ],
)
def test_each_step_says_why(samples: list[float], causes: str) -> None:
    controller = tiers()
    assert [controller.observe(view(p), T0 + n).why for n, p in enumerate(samples)] == causes.split()


def test_a_factor_held_back_by_hysteresis_says_so() -> None:
    controller = tiers(SLOW_RELEASE)
    feed(controller, 96, 96, 96)
    assert controller.observe(view(92), T0 + 3).why is Why.HELD, "too near its edge"
    assert controller.observe(view(50), T0 + 4).why is Why.HELD, "one calm sample of three"


@pytest.mark.parametrize("junk", [None, math.nan, math.inf, -math.inf, -0.1, 100.1])
def test_what_is_no_signal_is_neither_a_strike_nor_calm(junk: float | None) -> None:
    controller = tiers()
    assert feed(controller, 96, 96, junk, 96) == [1, 1, 1, 0]
    shut = feed(controller, 96, junk, start=T0 + 4)
    assert shut == [0, 0]
    assert controller.regime(T0 + 5).load == 0.96
    assert controller.regime(T0 + 4 + 2.5).telemetry is Telemetry.LATE, "junk does not keep telemetry fresh"


def test_the_regime_knows_when_its_factor_last_changed() -> None:
    controller = tiers()
    feed(controller, 86, 86, 86, 87)
    assert controller.regime(T0 + 4).since_s == T0 + 2
    assert controller.observe(view(50), T0 + 5).since_s == T0 + 5


# --- lost devices ---


def test_lost_capacity_multiplies_the_factor_at_once_and_returns_with_it() -> None:
    controller = tiers()
    feed(controller, 50)
    assert controller.observe(view(50, 0.5), T0 + 1).factor == 0.5
    assert controller.observe(view(None, 0.25), T0 + 2).factor == 0.25, "needs no signal"
    regime = controller.observe(view(50, 1.0), T0 + 3)
    assert (regime.factor, regime.why) == (1.0, Why.CALM)


def test_the_last_device_lost_shuts_the_door_and_says_so() -> None:
    controller = tiers()
    feed(controller, 50)
    regime = controller.observe(view(None, 0.0), T0 + 1)
    assert (regime.factor, regime.tier, regime.why) == (0.0, 1.0, Why.LOST)
    assert regime.reopens_s > T0 + 1
    assert controller.observe(view(50, 1.0), T0 + 2).factor == 1.0


def test_a_device_lost_from_the_start_is_a_loss_too() -> None:
    regime = tiers().observe(view(None, 0.0), T0)
    assert (regime.factor, regime.why, regime.telemetry) == (0.0, Why.LOST, Telemetry.STARTING)
    assert regime.reopens_s == regime.until_s == T0 + 1


def test_after_a_loss_the_table_holds_for_thirty_seconds() -> None:
    controller = tiers()
    feed(controller, 91, 91, 91)
    lost_at = T0 + 3
    assert controller.observe(view(91, 0.5), lost_at).factor == 0.2
    for n in range(1, int(LOSS_HOLD_S)):
        regime = controller.observe(view(20, 0.5), lost_at + n)
        assert (regime.tier, regime.factor, regime.why) == (0.4, 0.2, Why.HELD), "the hot card left the mean"
    regime = controller.observe(view(20, 0.5), lost_at + LOSS_HOLD_S)
    assert (regime.tier, regime.factor) == (1.0, 0.5)


def test_during_the_hold_the_table_may_still_cut() -> None:
    controller = tiers()
    feed(controller, 86, 86, 86)
    controller.observe(view(86, 0.5), T0 + 3)
    assert controller.observe(view(96, 0.5), T0 + 4).tier == 0.0


# --- silence ---


@pytest.mark.parametrize("factor", [1.0, 0.7, 0.4, 0.0])
@pytest.mark.parametrize("unknown", Unknown)
def test_silence_walks_down_the_ladder(factor: float, unknown: Unknown) -> None:
    controller, last = held_at(factor, unknown)
    assumed = {Unknown.OPEN: 1.0, Unknown.LAST: factor, Unknown.CONSERVATIVE: 0.7, Unknown.CLOSED: 0.0}[
        unknown
    ]
    expected = [
        (2.0, Telemetry.FRESH, factor),
        (2.001, Telemetry.LATE, factor),
        (3.0, Telemetry.LATE, factor),
        (3.001, Telemetry.STALE, factor),
        (16.5, Telemetry.STALE, (factor + assumed) / 2),
        (30.0, Telemetry.STALE, assumed),
        (30.001, Telemetry.BLIND, assumed),
        (1e6, Telemetry.BLIND, assumed),
    ]
    for age, state, then in expected:
        regime = controller.regime(last + age)
        assert regime.telemetry is state
        assert regime.factor == pytest.approx(then, abs=1e-3)
        assert regime.tier == factor, "the table's own factor stays"
        cause = {Telemetry.STALE: Why.STALE, Telemetry.BLIND: Why.BLIND}.get(state)
        assert regime.why is cause or cause is None
        assert (regime.load is None) is (state is Telemetry.BLIND)


@pytest.mark.parametrize("factor", [1.0, 0.7, 0.4, 0.0])
@pytest.mark.parametrize("unknown", Unknown)
def test_no_answer_changes_before_until_s_and_none_jumps(factor: float, unknown: Unknown) -> None:
    controller, last = held_at(factor, unknown)
    regime = controller.regime(last)
    largest = abs(controller._staleness.assumed(factor) - factor) * BLEND_STEP_S / 27.0 + 1e-9
    seen, now = {regime.telemetry}, last
    for _ in range(400):
        if regime.until_s == math.inf:
            break
        assert regime.until_s >= now
        just_before = copy.deepcopy(controller).regime(math.nextafter(regime.until_s, 0.0))
        assert just_before.telemetry is regime.telemetry
        assert abs(just_before.factor - regime.factor) <= largest
        if regime.telemetry is not Telemetry.STALE:
            assert just_before.factor == regime.factor
        now = max(math.nextafter(regime.until_s, math.inf), now)
        following = controller.regime(now)
        assert abs(following.factor - regime.factor) <= largest, "never silently open or shut"
        regime = following
        seen.add(regime.telemetry)
    assert regime.telemetry is Telemetry.BLIND or regime.factor == 0.0
    assert seen >= {Telemetry.FRESH, Telemetry.LATE, Telemetry.STALE}


def test_the_end_of_the_ladder_is_an_instant_to_ask_again() -> None:
    controller, last = held_at(0.4, Unknown.OPEN)
    assert controller.regime(last + 29.9).until_s == last + 30.0
    assert controller.regime(last + 20.0).until_s == last + 20.0 + BLEND_STEP_S


@pytest.mark.parametrize(
    ("unknown", "starting", "blind"),
    [
        (Unknown.OPEN, 1.0, 1.0),
        (Unknown.LAST, 1.0, 1.0),
        (Unknown.CONSERVATIVE, 1.0, 0.7),
        (Unknown.CLOSED, 0.0, 0.0),
    ],
)
def test_a_first_sample_that_never_comes(unknown: Unknown, starting: float, blind: float) -> None:
    controller = tiers(unknown=unknown)
    regime = controller.regime(T0 + STARTING_S)
    assert (regime.telemetry, regime.factor, regime.load) == (Telemetry.STARTING, starting, None)
    regime = controller.regime(T0 + STARTING_S + 0.001)
    assert (regime.telemetry, regime.factor, regime.why) == (Telemetry.BLIND, blind, Why.BLIND)
    if starting:
        assert controller.regime(T0 + 1).until_s == T0 + STARTING_S
    if blind:
        assert regime.until_s == math.inf


def test_the_first_sample_is_due_from_the_start_of_the_reading() -> None:
    controller = tiers(unknown=Unknown.CONSERVATIVE)
    assert controller.regime(T0 + 60.0).telemetry is Telemetry.BLIND
    controller.started(T0 + 60.0)
    regime = controller.regime(T0 + 60.0)
    assert (regime.telemetry, regime.factor, regime.until_s) == (
        Telemetry.STARTING,
        1.0,
        T0 + 60.0 + STARTING_S,
    )
    assert controller.regime(T0 + 60.1 + STARTING_S).telemetry is Telemetry.BLIND


def test_a_start_makes_no_old_sample_new() -> None:
    controller, last = held_at(0.4, Unknown.CONSERVATIVE)
    controller.started(last + 100.0)
    assert controller.regime(last + 100.0).telemetry is Telemetry.BLIND


def test_the_first_sample_opens_a_closed_start() -> None:
    controller = tiers(unknown=Unknown.CLOSED)
    assert controller.regime(T0).factor == 0.0
    assert controller.observe(view(50), T0 + 1).factor == 1.0


@pytest.mark.parametrize("away_s", [3.001, 16.5, 100.0])
@pytest.mark.parametrize(
    ("factor", "unknown", "signal"),
    [
        (0.0, Unknown.OPEN, 10.0),
        (1.0, Unknown.CLOSED, 10.0),
        (1.0, Unknown.CONSERVATIVE, 99.0),
        (0.4, Unknown.LAST, 10.0),
    ],
)
def test_after_an_outage_three_new_samples_are_needed(
    away_s: float, factor: float, unknown: Unknown, signal: float
) -> None:
    controller, last = held_at(factor, unknown)
    back = last + away_s
    during = controller.regime(back).factor
    first = controller.observe(view(signal), back)
    second = controller.observe(view(signal), back + 1)
    assert first.telemetry is second.telemetry is Telemetry.FRESH
    assert first.factor == second.factor == during, "no jump when telemetry is back"
    assert controller.observe(view(signal), back + 2).factor == (1.0 if signal == 10.0 else 0.0)


@given(
    rules=st.builds(Hysteresis, release_samples=st.integers(1, 3), recovery_step=st.sampled_from([0.1, 1.0])),
    unknown=st.sampled_from(Unknown),
    runs=st.lists(
        st.tuples(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.floats(0.0, 40.0)), max_size=6
    ),
)
def test_outages_and_samples_in_any_order_follow_the_slow_table(
    rules: Hysteresis, unknown: Unknown, runs: list[tuple[list[float], float]]
) -> None:
    controller = tiers(rules, unknown)
    slow = SlowTable(TierTable().steps, rules, factor=0.0 if unknown is Unknown.CLOSED else 1.0)
    ladder, now = Staleness(unknown=unknown), T0
    for samples, away_s in runs:
        for pct in samples:
            assert controller.observe(view(pct), now).factor == pytest.approx(slow.sample(pct), abs=1e-12)
            now += 1.0
        now += away_s
        if away_s + 1.0 > ladder.stale_s:
            slow.resume(ladder.factor(slow.factor, away_s + 1.0))
        assert controller.regime(now).factor == pytest.approx(
            ladder.factor(controller.regime(now).tier, away_s + 1.0), abs=1e-12
        )


def test_strikes_from_before_an_outage_do_not_count() -> None:
    controller = tiers()
    assert feed(controller, 96, 96) == [1, 1]
    assert feed(controller, 96, 96, 96, start=T0 + 10) == [1, 1, 0]


def test_late_samples_change_nothing_and_need_no_new_trust() -> None:
    controller = tiers()
    feed(controller, 96, 96)
    assert controller.regime(T0 + 4.0).telemetry is Telemetry.LATE
    assert controller.observe(view(96), T0 + 4.0).factor == 0.0, "the third strike"


def test_gone_is_blind_at_once_and_a_sample_brings_it_back() -> None:
    controller, last = held_at(0.0, Unknown.OPEN)
    regime = controller.gone(last + 0.5)
    assert (regime.telemetry, regime.factor, regime.why) == (Telemetry.BLIND, 1.0, Why.BLIND)
    assert (regime.load, regime.until_s) == (None, math.inf)
    assert controller.observe(view(50), last + 1).factor == 1.0


def test_gone_before_any_sample_ends_the_start() -> None:
    assert tiers(unknown=Unknown.CONSERVATIVE).gone(T0).factor == 0.7


def test_gone_with_a_closed_door_stays_shut_and_keeps_saying_when_to_ask() -> None:
    controller, last = held_at(0.4, Unknown.CLOSED)
    regime = controller.gone(last)
    assert (regime.factor, regime.reopens_s, regime.until_s) == (0.0, last + 1, last + 1)


@pytest.mark.parametrize("unknown", Unknown)
def test_no_source_at_all_is_not_blind(unknown: Unknown) -> None:
    regime = tiers(unknown=unknown).silent(T0 + 1)
    assert (regime.factor, regime.tier, regime.load) == (1.0, 1.0, None)
    assert (regime.telemetry, regime.why, regime.until_s) == (Telemetry.NONE, Why.NO_DEVICE, math.inf)


def test_a_source_that_turns_up_after_all_is_followed() -> None:
    controller = tiers()
    controller.silent(T0)
    assert feed(controller, 96, 96, 96, start=T0 + 100) == [1, 1, 0]
    assert controller.silent(T0 + 103).factor == 1.0


# --- when a shut door may open ---


def test_a_shut_door_names_the_next_sample() -> None:
    controller = tiers()
    feed(controller, 96, 96, 96)
    regime = controller.regime(T0 + 2.4)
    assert (regime.factor, regime.reopens_s, regime.until_s) == (0.0, T0 + 3, T0 + 3)
    overdue = controller.regime(T0 + 3.5)
    assert overdue.reopens_s == T0 + 4.5, "one interval from now if none can be foreseen"
    assert controller.observe(view(50), T0 + 4).reopens_s == 0.0


def test_reopening_never_lies_in_the_past() -> None:
    controller, last = held_at(0.0, Unknown.LAST)
    for tenths in range(400):
        now = last + tenths / 10
        regime = controller.regime(now)
        assert now <= regime.until_s <= regime.reopens_s > now


@given(
    rules=st.builds(
        Hysteresis, release_samples=st.integers(1, 4), recovery_step=st.sampled_from([0.25, 1.0])
    ),
    calm_before=st.integers(0, 2),
    hot_after=st.integers(0, 1),
    outage=st.booleans(),
    loss=st.sampled_from(["none", "with a signal", "without"]),
)
@example(rules=Hysteresis(release_samples=3), calm_before=2, hot_after=0, outage=False, loss="without")
def test_the_first_sample_that_could_raise_the_factor_is_named_exactly(
    rules: Hysteresis, calm_before: int, hot_after: int, outage: bool, loss: str
) -> None:
    controller = tiers(rules, Unknown.CLOSED)
    now, capacity = T0, 1.0
    for pct in (99.0, 99.0, 99.0, *[50.0] * min(calm_before, rules.release_samples - 1), *[99.0] * hot_after):
        controller.observe(view(pct), now)
        now += 1.0
    if loss != "none":
        capacity = 0.5
        now -= 1.0 if loss == "without" else 0.0
        controller.observe(view(None if loss == "without" else 99.0, capacity), now)
        now += 1.0
    if outage:
        now += 50.0
        controller.observe(view(99.0, capacity), now)
        now += 1.0
    promised = controller.regime(now - 1.0)
    if promised.factor:
        return
    while not controller.observe(view(10.0, capacity), now).factor:
        now += 1.0
    assert promised.reopens_s == now


# --- policy fixed ---


def test_fixed_keeps_the_rates_and_tells_the_age_of_telemetry() -> None:
    controller = FixedController(tiers(unknown=Unknown.CLOSED), T0)
    hot = replace(view(100.0, 0.0), taken_at_s=T0 + 1)
    regimes: list[Regime] = [
        controller.regime(T0),
        controller.observe(hot, T0 + 1),
        controller.regime(T0 + 10),
        controller.regime(T0 + 100),
        controller.silent(T0 + 101),
    ]
    assert [regime.telemetry.value for regime in regimes] == ["starting", "fresh", "stale", "blind", "none"]
    controller.started(T0 + 102)
    for regime in [*regimes, controller.gone(T0 + 103)]:
        assert (regime.factor, regime.tier, regime.load, regime.why) == (1.0, 1.0, None, Why.POLICY)
        assert regime.since_s == T0


class TestAllLost:
    """The last device is gone: shut as long as that is what the reads say, and not for ever after."""

    def shut(self, unknown: Unknown = Unknown.OPEN) -> TierController:
        controller = tiers(unknown=unknown)
        controller.observe(view(50.0), T0)
        controller.observe(view(None, capacity=0.0), T0 + 1.0)
        return controller

    def test_stays_shut_while_reads_go_on(self) -> None:
        controller = self.shut()
        for second in range(2, 100):
            regime = controller.observe(view(None, capacity=0.0), T0 + second)
            assert (regime.factor, regime.why) == (0.0, Why.LOST)

    def test_opens_by_and_by_once_the_reads_end(self) -> None:
        controller = self.shut()
        factors = [controller.regime(T0 + 1.0 + second).factor for second in range(40)]
        assert factors[:4] == [0.0] * 4
        assert factors == sorted(factors)
        assert max(b - a for a, b in itertools.pairwise(factors)) < 0.05
        assert factors[31:] == [1.0] * 9
        assert controller.regime(T0 + 100.0).until_s == math.inf

    def test_what_is_assumed_decides(self) -> None:
        assert self.shut(Unknown.LAST).regime(T0 + 100.0).factor == 0.0
        assert self.shut(Unknown.CLOSED).regime(T0 + 100.0).factor == 0.0
        assert self.shut(Unknown.CONSERVATIVE).regime(T0 + 100.0).factor == 0.7

    @pytest.mark.parametrize("told", [50.0, None])
    @pytest.mark.parametrize("left", [0.0, 0.5])
    def test_each_regime_says_until_when_it_holds(self, told: float | None, left: float) -> None:
        controller = tiers()
        controller.observe(view(told), T0)
        controller.observe(view(None, capacity=left), T0 + 1.0)
        now = T0 + 1.0
        while now < T0 + 60.0:
            regime = controller.regime(now)
            just_before = min(regime.until_s, now + 5.0) - 1e-6
            assert abs(controller.regime(just_before).factor - regime.factor) < 0.02
            now = min(regime.until_s, now + 5.0) + 1e-6
