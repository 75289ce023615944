"""The table made stable: what arms it, how deep it cuts, when it lets go."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.limiting.token_bucket import SharedBudget
from autoglm_throttle.settings.groups.control import ControlSettings, RateSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import (
    ControlCause,
    ControlState,
    GpuSample,
    LimiterReport,
    Priority,
    ServiceStats,
)
from tests.control.slow_adaptive import Sample, SlowAdaptive
from tests.control.views import T0, adaptive, quiet, view, waiting

N = 1600.0
RATES = (1000.0, 500.0, 100.0)
WORK = ServiceStats()


def run(steps: str, service_rps: float | None = 100.0) -> list[ControlState]:
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
def test_each_step_has_its_cause(steps: str, causes: str) -> None:
    assert [regime.cause for regime in run(steps)] == causes.split()


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
    assert regime.cause is ControlCause.HELD


def test_a_cut_looks_at_the_last_sample_alone() -> None:
    states = run("96! 96! 96! 86!")
    assert [regime.tier for regime in states] == [1.0, 1.0, 0.0, 0.7]
    assert states[-1].ceilings == (0.7, 0.7, 1.0)


def test_control_state_has_the_time_of_the_last_change() -> None:
    assert [regime.since_s - T0 for regime in run("96! 96! 96! 96! 50 50 50")] == [0, 0, 2, 2, 2, 5, 5]


def test_limiter_report_without_signal_counts_at_the_next_sample() -> None:
    controller = adaptive()
    for n in range(3):
        controller.observe(view(None), waiting(), WORK, T0 + n + 0.5)
        regime = controller.observe(view(96.0), quiet(), WORK, T0 + n + 0.75)
        assert regime.load == 0.5, "nobody waits now"
    assert regime.cause is ControlCause.TIER
    assert controller.observe(view(96.0), quiet(), WORK, T0 + 4).cause is ControlCause.HELD, (
        "said once, counted once"
    )


def test_table_factor_is_that_of_the_literal_table() -> None:
    reported = [(regime.table_factor, regime.armed) for regime in run("96 96 96 96! 96! 96! 50 50")]
    assert reported == [
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
    controller, slow = adaptive(), SlowAdaptive(ControlSettings().tiers, RATES)
    unconfirmed = 0
    for n, sample in enumerate(samples):
        word = LimiterReport(sample.confirmed, sample.service_rps, 5, 10.0)
        regime = controller.observe(view(sample.pct, sample.capacity), word, WORK, T0 + n)
        budget, ceilings, state = slow.sample(sample)
        acting = state in {"cut", "held"}
        assert regime.armed is acting
        assert regime.ceilings == pytest.approx(ceilings, rel=1e-12)
        assert regime.budget_rps == (pytest.approx(budget, rel=1e-12) if acting else None)
        assert regime.factor == pytest.approx(budget / N if acting else 1.0, rel=1e-12)
        assert {"cut": ControlCause.TIER, "held": ControlCause.HELD, "striking": ControlCause.STRIKE}.get(
            state, regime.cause
        ) is regime.cause
        assert (state == "open") is (regime.cause in {ControlCause.CALM, ControlCause.RELEASED})
        # what the design promises of any history
        capacity = min(earlier.capacity for earlier in samples[max(0, n - 2) : n + 1])
        lowest = min(N * capacity, 1.15 * (sample.service_rps or 1.0))
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
    states = []
    for arrangement in (list(range(3)), order):
        controller, aggregator = adaptive(), Aggregator(GpuSettings())
        for second, reading in enumerate(readings):
            rows = [device(n, reading[n], T0 + second, lost=n == lost and second > 1) for n in arrangement]
            seen = aggregator.update(rows, T0 + second)
            states.append(controller.observe(seen, waiting(), WORK, T0 + second))
    half = len(readings)
    assert states[:half] == states[half:]


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


def test_budget_rejections_do_not_confirm_after_a_hang() -> None:
    controller = adaptive()
    budget = SharedBudget(RateSettings(), T0)
    states: list[ControlState] = []
    for second in range(20):
        now = T0 + second
        hangs = second < 8
        rejected = sum(budget.take(Priority.LOW, now + tick / 500) is not None for tick in range(500))
        assert bool(rejected) is (states[-1].budget_rps is not None if states else False)
        word = LimiterReport(confirmed=hangs, service_rps=100.0, in_flight=64 if hangs else 20, limit=64.0)
        states.append(controller.observe(view(99.0), word, WORK, now + 1.0))
        budget.rescale(states[-1].budget_rps, states[-1].term, now + 1.0)
    acting = [regime.armed for regime in states]
    assert acting == [False, False, *[True] * 7, *[False] * 11], "released at the second quiet sample"
    assert [regime.cause for regime in states[7:11]] == [
        ControlCause.TIER,
        ControlCause.HELD,
        ControlCause.RELEASED,
        ControlCause.CALM,
    ]


# --- load ---


@pytest.mark.parametrize(
    ("pct", "word", "load"),
    [
        (96.0, LimiterReport(True, 100.0, 32, 64.0), 0.96),
        (96.0, LimiterReport(False, 100.0, 32, 64.0), 0.5),
        (20.0, LimiterReport(False, 100.0, 32, 64.0), 0.2),
        (96.0, LimiterReport(False, 100.0, 70, 64.0), 0.96),
        (96.0, LimiterReport(), 0.0),
        (None, LimiterReport(True, 100.0, 32, 64.0), 0.5),
        (None, LimiterReport(False, 100.0, 70, 64.0), 1.0),
    ],
)
def test_the_load(pct: float | None, word: LimiterReport, load: float) -> None:
    assert adaptive().observe(view(pct), word, WORK, T0).load == load


def test_headroom_above_the_service_rate_is_a_setting() -> None:
    controller = adaptive(ControlSettings(adaptive_headroom=2.0))
    states = [controller.observe(view(96.0), waiting(100.0), WORK, T0 + n) for n in range(3)]
    assert states[-1].budget_rps == 200.0


def test_samples_before_the_release_are_a_setting() -> None:
    controller = adaptive(ControlSettings(adaptive_release_samples=4))
    words = [waiting()] * 3 + [quiet()] * 4
    states = [controller.observe(view(96.0), word, WORK, T0 + n) for n, word in enumerate(words)]
    assert [state.armed for state in states] == [False, False, True, True, True, True, False]


def test_load_follows_the_limiter_between_samples_unconfirmed() -> None:
    controller = adaptive()
    controller.observe(view(90.0), quiet(), WORK, T0)
    assert controller.control_state(T0 + 0.5, LimiterReport(True, 1.0, 16, 64.0)).load == 0.25
    assert controller.control_state(T0 + 0.6).load == 0.25


def test_in_a_fleet_each_process_cuts_its_own_part_of_the_rates() -> None:
    """The gate tells what this process finishes, so it is laid beside this process's part."""

    def cut(processes: int, service_rps: float) -> ControlState:
        controller, word = adaptive(), LimiterReport(True, service_rps, 5, 10.0, processes)
        for n in range(3):
            controller.observe(view(96.0), word, WORK, T0 + n)
        return controller.control_state(T0 + 2.0)

    alone, one_of_four = cut(1, 100.0), cut(4, 25.0)
    assert alone.budget_rps == pytest.approx(115.0)
    assert one_of_four.budget_rps == pytest.approx(115.0 / 4)
    assert one_of_four.ceilings == pytest.approx(alone.ceilings)
    assert one_of_four.factor == pytest.approx(alone.factor)


def test_a_process_that_joins_later_shrinks_the_part_of_each() -> None:
    controller = adaptive()
    for n, processes in enumerate((1, 1, 1, 2)):
        regime = controller.observe(view(91.0), LimiterReport(True, 1.0, 5, 10.0, processes), WORK, T0 + n)
    assert regime.budget_rps == pytest.approx(0.4 * N / 2)
    assert regime.factor == pytest.approx(0.4)
