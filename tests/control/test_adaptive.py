"""The table made stable: what arms it, how deep it cuts, when it lets go."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.controller import Hysteresis
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.limiting.shared_budget import RESERVES, SharedBudget
from autoglm_throttle.model import (
    Aggregate,
    Evidence,
    GpuSample,
    GpuView,
    Priority,
    Regime,
    Signal,
    Telemetry,
    Unknown,
    Why,
    Work,
)
from tests.control.slow_adaptive import Sample, SlowAdaptive
from tests.control.views import T0, adaptive, quiet, see, view, waiting

N = 1600.0
RATES = (1000.0, 500.0, 100.0)
WORK = Work()


def run(steps: str, service_rps: float | None = 100.0) -> list[Regime]:
    """One sample a second, such as ``96!`` with the gate's confirmation or ``96`` without it."""
    controller = adaptive()
    return [
        controller.observe(
            view(float(step.strip("!"))),
            waiting(service_rps) if step.endswith("!") else quiet(service_rps),
            WORK,
            T0 + n,
        )
        for n, step in enumerate(steps.split())
    ]


# --- the states of the design ---


@pytest.mark.parametrize(
    ("steps", "budgets"),
    [
        ("86! 86! 86!", [None, None, 1120.0]),
        ("91! 91! 91!", [None, None, 640.0]),
        ("96! 96! 96!", [None, None, 115.0]),
        ("96! 96! 86!", [None, None, 1120.0]),
        ("86! 86! 86! 96! 91!", [None, None, 1120.0, 115.0, 640.0]),
        ("96 96 96 96", [None] * 4),
        ("96! 96! 96 96! 96!", [None] * 5),
        ("85! 85! 85! 85!", [None] * 4),
        ("96! 96! 85! 96! 96! 96!", [None] * 5 + [115.0]),
        ("96! 96! 96! 50! 50! 50!", [None, None, 115.0, 115.0, 115.0, 115.0]),
        ("96! 96! 96! 96 50", [None, None, 115.0, 115.0, None]),
        ("96! 96! 96! 96 96! 50 50", [None, None, 115.0, 115.0, 115.0, 115.0, None]),
        ("91! 91! 91! 50! 96! 96! 96!", [None, None, 640.0, 640.0, 640.0, 640.0, 115.0]),
    ],
)
def test_the_budget_after_each_sample(steps: str, budgets: list[float | None]) -> None:
    assert [regime.budget_rps for regime in run(steps)] == pytest.approx(budgets)


@pytest.mark.parametrize(
    ("steps", "causes"),
    [
        ("10 86! 86! 86! 86!", "calm strike strike tier tier"),
        ("96! 96! 96! 50! 50 50 50", "strike strike tier held held released calm"),
        ("96! 96! 96! 50! 96! 96! 96!", "strike strike tier held held held tier"),
        ("10! 96! 10! 96", "calm strike calm calm"),
    ],
)
def test_each_step_says_why(steps: str, causes: str) -> None:
    assert [regime.why for regime in run(steps)] == causes.split()


@pytest.mark.parametrize(
    ("pct", "tier", "service_rps", "ceilings"),
    [
        (86, 0.7, 10.0, (0.7, 0.7, 0.7)),
        (91, 0.4, 10.0, (0.4, 0.4, 0.4)),
        (96, 0.0, 10.0, (0.0115, 0.023, 0.115)),
        (96, 0.0, None, (0.00115, 0.0023, 0.0115)),
        (91, 0.4, 100.0, (0.4, 0.4, 1.0)),
        (86, 0.7, 2000.0, (1.0, 1.0, 1.0)),
    ],
)
def test_each_class_is_cut_by_the_band_but_not_below_what_the_service_completes(
    pct: int, tier: float, service_rps: float | None, ceilings: tuple[float, ...]
) -> None:
    regime = run(f"{pct}! {pct}! {pct}!", service_rps)[-1]
    assert regime.tier == tier
    assert regime.ceilings == pytest.approx(ceilings)


def test_open_and_striking_change_nothing() -> None:
    for regime in run("50 96! 96! 10 96"):
        assert (regime.factor, regime.tier, regime.ceilings) == (1.0, 1.0, (1.0, 1.0, 1.0))
        assert (regime.budget_rps, regime.armed) == (None, False)


def test_the_factor_is_the_share_of_the_nominal_rates_that_is_let_in() -> None:
    assert [regime.factor for regime in run("91! 91! 91! 50! 50 50")] == pytest.approx(
        [1.0, 1.0, 0.4, 0.4, 0.4, 1.0]
    )


def test_while_it_holds_budget_and_ceilings_only_follow_the_service_upwards() -> None:
    controller, now = adaptive(), T0
    for rate in (100.0, 100.0, 100.0, 200.0, 50.0):
        regime = controller.observe(view(96 if now < T0 + 3 else 50), waiting(rate), WORK, now)
        now += 1.0
    assert regime.budget_rps == pytest.approx(230.0)
    assert regime.ceilings == pytest.approx((0.23, 0.46, 1.0))
    regime = controller.observe(view(None), waiting(300.0), WORK, now)
    assert regime.budget_rps == pytest.approx(345.0), "a view without a signal is no sample, but X is known"
    assert regime.why is Why.HELD


def test_a_cut_looks_at_the_last_sample_alone() -> None:
    regimes = run("96! 96! 96! 86!")
    assert [regime.tier for regime in regimes] == [1.0, 1.0, 0.0, 0.7]
    assert regimes[-1].ceilings == (0.7, 0.7, 1.0)


def test_beside_it_stands_what_the_literal_table_says() -> None:
    told = [(regime.table_factor, regime.armed) for regime in run("96 96 96 96! 96! 96! 50 50")]
    assert told == [
        (1.0, False),
        (1.0, False),
        (0.0, False),
        (0.0, False),
        (0.0, False),
        (0.0, True),
        (1.0, True),
        (1.0, False),
    ]


@given(
    samples=st.lists(
        st.builds(
            Sample,
            pct=st.one_of(st.sampled_from([80.0, 85.0, 86.0, 90.0, 91.0, 95.0, 96.0]), st.floats(0, 100)),
            confirmed=st.sampled_from([True, True, True, False]),
            service_rps=st.one_of(st.none(), st.floats(0.01, 5000.0)),
            capacity=st.sampled_from([1.0, 1.0, 1.0, 0.75, 0.5]),
        ),
        max_size=40,
    )
)
def test_it_follows_the_slow_table(samples: list[Sample]) -> None:
    controller, slow = adaptive(), SlowAdaptive(TierTable().steps, RATES)
    unconfirmed = 0
    for n, sample in enumerate(samples):
        word = Evidence(sample.confirmed, sample.service_rps, 5, 10.0)
        regime = controller.observe(view(sample.pct, sample.capacity), word, WORK, T0 + n)
        budget, ceilings, state = slow.sample(sample)
        acting = state in {"cut", "held"}
        assert regime.armed is acting
        assert regime.ceilings == pytest.approx(ceilings, rel=1e-12)
        assert regime.budget_rps == (pytest.approx(budget, rel=1e-12) if acting else None)
        assert regime.factor == pytest.approx(budget / N if acting else 1.0, rel=1e-12)
        assert {"cut": Why.TIER, "held": Why.HELD, "striking": Why.STRIKE}.get(
            state, regime.why
        ) is regime.why
        assert (state == "open") is (regime.why in {Why.CALM, Why.RELEASED})
        # what the design promises of any history
        lowest = min(N * sample.capacity, 1.15 * (sample.service_rps or 1.0))
        assert regime.budget_rps is None or regime.budget_rps >= lowest
        assert all(0.0 <= share <= 1.0 for share in (regime.factor, *regime.ceilings, regime.table_factor))
        assert regime.load is not None
        assert 0.0 <= regime.load <= 1.0
        unconfirmed = 0 if sample.confirmed else unconfirmed + 1
        if unconfirmed >= 2:
            assert regime.budget_rps is None
            assert regime.factor == 1.0


@given(
    pcts=st.lists(st.one_of(st.none(), st.floats(0, 100), st.just(math.nan)), max_size=40),
    capacities=st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=40, max_size=40),
    rate=st.one_of(st.none(), st.floats(0.0, 5000.0)),
)
def test_unconfirmed_samples_never_cut(
    pcts: list[float | None], capacities: list[float], rate: float | None
) -> None:
    controller = adaptive()
    for n, (pct, capacity) in enumerate(zip(pcts, capacities, strict=False)):
        regime = controller.observe(view(pct, capacity), quiet(rate), WORK, T0 + n)
        assert (regime.factor, regime.ceilings) == (1.0, (1.0, 1.0, 1.0))
        assert (regime.budget_rps, regime.armed, regime.tier) == (None, False, 1.0)


@given(
    readings=st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=3, max_size=8),
    order=st.permutations(range(3)),
    lost=st.sampled_from([None, 0, 1, 2]),
)
def test_permuting_the_devices_changes_nothing(
    readings: list[list[float]], order: list[int], lost: int | None
) -> None:
    regimes = []
    for arrangement in (list(range(3)), order):
        controller, aggregator = adaptive(), Aggregator(Aggregate.WEIGHTED)
        for second, reading in enumerate(readings):
            rows = [device(n, reading[n], T0 + second, lost=n == lost and second > 1) for n in arrangement]
            seen = aggregator.update(rows, T0 + second)
            regimes.append(controller.observe(seen, waiting(), WORK, T0 + second))
    half = len(readings)
    assert regimes[:half] == regimes[half:]


def device(n: int, pct: float, taken_at_s: float, *, lost: bool) -> GpuSample:
    return GpuSample(
        device=f"GPU-{n}",
        index=n,
        taken_at_s=taken_at_s,
        source="test",
        health="lost" if lost else "ok",
        utilization_pct=None if lost else pct,
        memory_total_bytes=(n + 1) << 30,
        memory_used_bytes=(n + 1) << 29,
    )


# --- a GPU that hangs: the cut's own refusals must not hold it ---


def test_refusals_of_the_budget_do_not_confirm_after_a_hang() -> None:
    controller = adaptive()
    budget = SharedBudget(RESERVES, T0)
    regimes: list[Regime] = []
    for second in range(20):
        now = T0 + second
        hangs = second < 8
        refused = sum(budget.take(Priority.LOW, now + tick / 500) is not None for tick in range(500))
        assert bool(refused) is (regimes[-1].budget_rps is not None if regimes else False)
        word = Evidence(confirmed=hangs, service_rps=100.0, in_flight=64 if hangs else 20, limit=64.0)
        regimes.append(controller.observe(view(99.0), word, WORK, now + 1.0))
        budget.rescale(regimes[-1].budget_rps, regimes[-1].term, now + 1.0)
    acting = [regime.armed for regime in regimes]
    assert acting == [False, False, *[True] * 7, *[False] * 11], "released at the second quiet sample"
    assert [regime.why for regime in regimes[7:11]] == [Why.TIER, Why.HELD, Why.RELEASED, Why.CALM]


# --- load ---


@pytest.mark.parametrize(
    ("pct", "word", "load"),
    [
        (96.0, Evidence(True, 100.0, 32, 64.0), 0.96),
        (96.0, Evidence(False, 100.0, 32, 64.0), 0.5),
        (20.0, Evidence(False, 100.0, 32, 64.0), 0.2),
        (96.0, Evidence(False, 100.0, 70, 64.0), 0.96),
        (96.0, Evidence(), 0.0),
        (None, Evidence(True, 100.0, 32, 64.0), 0.5),
        (None, Evidence(False, 100.0, 70, 64.0), 1.0),
    ],
)
def test_the_load(pct: float | None, word: Evidence, load: float) -> None:
    assert adaptive().observe(view(pct), word, WORK, T0).load == load


def test_the_load_follows_the_gate_between_samples_and_confirms_nothing() -> None:
    controller = adaptive()
    controller.observe(view(90.0), quiet(), WORK, T0)
    assert controller.regime(T0 + 0.5, Evidence(True, 1.0, 16, 64.0)).load == 0.25
    assert controller.regime(T0 + 0.6).load == 0.25


# --- silence, losses, no source ---


@pytest.mark.parametrize("unknown", Unknown)
def test_a_cut_is_held_while_late_and_released_once_stale(unknown: Unknown) -> None:
    controller = adaptive(unknown=unknown)
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    last = T0 + 2
    for age, state, why, budget in [
        (2.0, Telemetry.FRESH, Why.TIER, 115.0),
        (3.0, Telemetry.LATE, Why.TIER, 115.0),
        (3.001, Telemetry.STALE, Why.STALE, None),
        (30.001, Telemetry.BLIND, Why.BLIND, None),
    ]:
        regime = controller.regime(last + age)
        assert (regime.telemetry, regime.why) == (state, why)
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
    while regime.until_s < math.inf:
        before = controller.regime(math.nextafter(regime.until_s, 0.0))
        assert (before.budget_rps, before.telemetry) == (regime.budget_rps, regime.telemetry)
        regime = controller.regime(math.nextafter(regime.until_s, math.inf))
        states.append(regime.telemetry)
    assert [state for state, _ in itertools.groupby(states)] == [
        Telemetry.LATE,
        Telemetry.STALE,
        Telemetry.BLIND,
    ]


def test_after_an_outage_three_new_samples_are_needed_for_a_cut() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 6.0 + n) for n in range(3)]
    assert [regime.budget_rps is None for regime in back] == [True, True, False]
    assert [regime.why for regime in back] == [Why.STRIKE, Why.STRIKE, Why.TIER]


def test_after_an_outage_a_quicker_table_needs_three_samples_too() -> None:
    controller = adaptive(Hysteresis(samples=1))
    assert controller.observe(view(96.0), waiting(), WORK, T0).armed
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 6.0 + n) for n in range(4)]
    assert [regime.armed for regime in back] == [False, False, True, True]


def test_strikes_from_before_an_outage_do_not_count() -> None:
    controller = adaptive(Hysteresis(samples=5))
    for n in range(4):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    back = [controller.observe(view(96.0), waiting(), WORK, T0 + 10.0 + n) for n in range(5)]
    assert [regime.armed for regime in back] == [False, False, False, False, True]


def test_a_late_sample_is_neither_a_strike_nor_calm() -> None:
    controller = adaptive()
    for at, pct in [(0.0, 96.0), (1.0, 96.0), (2.0, None), (3.0, None), (4.0, 96.0)]:
        regime = controller.observe(view(pct), waiting() if pct else quiet(), WORK, T0 + at)
    assert regime.why is Why.TIER
    for at in (5.0, 6.0):
        assert controller.observe(view(None), quiet(), WORK, T0 + at).armed


def test_an_unknown_signal_counts_as_stale() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    armed = [controller.observe(view(None), waiting(), WORK, T0 + 3.0 + n).armed for n in range(4)]
    assert armed == [True, True, True, False]


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


def test_the_last_device_lost_shuts_the_door_and_its_return_opens_it() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    regime = controller.observe(view(None, 0.0), waiting(), WORK, T0 + 3)
    assert (regime.factor, regime.ceilings, regime.why) == (0.0, (0.0, 0.0, 0.0), Why.LOST)
    assert (regime.budget_rps, regime.armed) == (None, False)
    assert (regime.reopens_s, regime.until_s) == (T0 + 4, T0 + 4)
    assert controller.regime(T0 + 3.4).reopens_s == T0 + 4
    assert controller.regime(T0 + 4.5).reopens_s == T0 + 5.5, "overdue: one interval from now"
    back = controller.observe(view(50.0), quiet(), WORK, T0 + 5)
    assert back.factor == pytest.approx(115.0 / N), "held until two quiet samples"
    assert back.reopens_s == 0.0
    assert controller.observe(view(50.0), quiet(), WORK, T0 + 6).factor == 1.0


def test_a_shut_door_is_asked_about_again_when_the_next_view_is_due() -> None:
    controller = adaptive()
    see(controller, view(50.0), T0)
    assert see(controller, view(None, 0.0), T0 + 0.25).until_s == T0 + 1.25


@pytest.mark.parametrize(
    ("unknown", "opens"), [(Unknown.OPEN, 1.0), (Unknown.LAST, 0.0), (Unknown.CLOSED, 1.0)]
)
def test_a_door_shut_by_a_loss_opens_by_and_by_once_the_reads_end(unknown: Unknown, opens: float) -> None:
    controller = adaptive(unknown=unknown)
    see(controller, view(50.0), T0)
    see(controller, view(None, 0.0), T0 + 1)
    regimes = [controller.regime(T0 + 1 + second) for second in range(40)]
    factors = [regime.factor for regime in regimes]
    assert factors[:4] == [0.0] * 4
    assert factors == sorted(factors)
    assert factors[31:] == [opens] * 9
    assert max(b - a for a, b in itertools.pairwise(factors)) < 0.05
    assert all(regime.ceilings == (regime.factor,) * 3 for regime in regimes)


def test_without_a_source_the_gate_stands_alone() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(96.0), waiting(), WORK, T0 + n)
    regime = controller.silent(T0 + 3)
    assert (regime.why, regime.telemetry, regime.until_s) == (Why.NO_DEVICE, Telemetry.NONE, math.inf)
    assert (regime.factor, regime.budget_rps, regime.ceilings) == (1.0, None, (1.0, 1.0, 1.0))
    assert (regime.armed, regime.table_factor, regime.load) == (False, 1.0, 1.0)


def test_without_a_source_a_loss_before_it_shuts_nothing() -> None:
    controller = adaptive()
    see(controller, view(None, 0.0), T0)
    assert controller.silent(T0 + 1).factor == 1.0


def test_a_source_that_is_gone_releases_at_once() -> None:
    controller = adaptive(unknown=Unknown.CLOSED)
    for n in range(3):
        assert controller.observe(view(86.0), waiting(), WORK, T0 + n).table_factor > 0.0
    regime = controller.gone(T0 + 2.5)
    assert (regime.why, regime.factor, regime.budget_rps) == (Why.BLIND, 1.0, None)
    assert regime.table_factor == 0.0, "the literal table would be shut"


def test_the_first_sample_is_due_from_the_start_of_the_reading() -> None:
    controller = adaptive(unknown=Unknown.CONSERVATIVE)
    assert controller.regime(T0 + 60.0).telemetry is Telemetry.BLIND
    controller.started(T0 + 60.0)
    regime = controller.regime(T0 + 60.0)
    assert (regime.telemetry, regime.table_factor) == (Telemetry.STARTING, 1.0)


def test_the_regime_knows_when_its_factor_last_changed() -> None:
    assert [regime.since_s - T0 for regime in run("96! 96! 96! 96! 50 50 50")] == [0, 0, 2, 2, 2, 5, 5]


# --- the signal in force ---


def test_it_acts_on_the_pressure_where_that_is_the_signal() -> None:
    controller = adaptive(signal=Signal.PRESSURE)
    seen: list[GpuView] = [view(10.0, memory=fill) for fill in (0.4, 0.9, 0.9, 0.9)]
    for n, shown in enumerate(seen):
        regime = controller.observe(shown, waiting(), Work(p95_s=1.8, slo_s=2.0), T0 + n)
    assert (regime.signal, regime.term) == (Signal.PRESSURE, "memory")
    assert regime.load == pytest.approx(0.9 / 0.92)
    assert regime.tier == 0.0
    assert regime.budget_rps == pytest.approx(115.0)
    assert controller.pressure.terms == pytest.approx({"memory": 0.9 / 0.92, "latency": 0.9})


def test_a_pressure_of_which_nothing_is_known_is_no_signal() -> None:
    controller = adaptive(signal=Signal.PRESSURE)
    regimes = [controller.observe(view(99.0), waiting(), WORK, T0 + n) for n in range(8)]
    assert {regime.armed for regime in regimes} == {False}
    assert {regime.term for regime in regimes} == {"unknown"}
    assert regimes[-1].telemetry is Telemetry.BLIND


def test_the_same_view_again_is_no_new_sample() -> None:
    controller = adaptive()
    hot = replace(view(99.0), taken_at_s=T0)
    assert [controller.observe(hot, waiting(), WORK, T0 + n / 10).why for n in range(5)] == [Why.STRIKE] * 5
