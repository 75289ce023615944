"""What verdicts mean for what may come in: a cap for ``tiers``, an excuse for ``adaptive``, a dead card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.controller import Hysteresis
from autoglm_throttle.control.effect import NO_EFFECT, effect
from autoglm_throttle.model import Finding, GpuView, Signal, Verdict, Why, Work
from tests.control.views import T0, adaptive, see, tiers, view, waiting

FINDINGS = st.sampled_from(Finding)


def judged(pct: float, *findings: Finding, weights: tuple[float, ...] | None = None) -> GpuView:
    """A view of as many cards as findings, of equal weight unless it is said otherwise."""
    keys = [("", f"GPU-{n}") for n in range(len(findings))]
    shares = weights or (1.0 / len(findings),) * len(findings)
    return replace(
        view(pct),
        weights=dict(zip(keys, shares, strict=True)),
        verdicts={key: Verdict(finding, T0, 1.0) for key, finding in zip(keys, findings, strict=True)},
    )


@pytest.mark.parametrize(
    ("findings", "factor", "why", "stalled", "underfed"),
    [
        ([Finding.PRODUCTIVE, Finding.WORKING], 1.0, None, False, False),
        ([Finding.STALLED, Finding.STALLED], 0.0, Why.STALLED, True, False),
        ([Finding.STALLED, Finding.LOST], 0.0, Why.STALLED, True, False),
        ([Finding.STALLED, Finding.WORKING], 0.5, Why.STALLED, False, False),
        ([Finding.STALLED, Finding.DEGRADED], 0.35, Why.STALLED, False, False),
        ([Finding.DEGRADED], 0.7, Why.DEGRADED, False, False),
        ([Finding.UNDERFED, Finding.IDLE], 1.0, None, False, True),
        ([Finding.UNDERFED, Finding.WORKING], 1.0, None, False, True),
        ([Finding.UNDERFED, Finding.PRODUCTIVE], 1.0, None, False, False),
        ([Finding.UNDERFED, Finding.UNKNOWN], 1.0, None, False, False),
        ([Finding.LOST], 1.0, None, False, False),
        ([Finding.THROTTLED, Finding.STARVED], 1.0, None, False, False),
    ],
)
def test_each_finding_has_its_effect(
    findings: list[Finding], factor: float, why: Why | None, stalled: bool, underfed: bool
) -> None:
    found = effect(judged(99.0, *findings))
    assert found.factor == pytest.approx(factor)
    assert found[1:] == (why, stalled, underfed)


def test_without_verdicts_there_is_no_effect() -> None:
    assert effect(view(99.0)) is NO_EFFECT


def test_a_card_counts_by_its_weight() -> None:
    assert effect(judged(99.0, Finding.STALLED, Finding.WORKING, weights=(0.1, 0.9))).factor == pytest.approx(
        0.9
    )


@given(st.lists(FINDINGS, min_size=1, max_size=6), st.data())
def test_a_worse_finding_never_lets_more_in(findings: list[Finding], data: st.DataObject) -> None:
    before = effect(judged(99.0, *findings)).factor
    at = data.draw(st.integers(0, len(findings) - 1))
    worse = [*findings[:at], Finding.STALLED, *findings[at + 1 :]]
    after = effect(judged(99.0, *worse)).factor
    assert 0.0 <= after <= before + 1e-12 or findings[at] is Finding.LOST


class TestTiers:
    """The cap falls at once and rises like the table after an outage."""

    def test_a_stall_shuts_the_door_and_three_good_samples_open_it(self) -> None:
        controller = tiers()
        steps = [Finding.WORKING, Finding.STALLED, Finding.STALLED, *[Finding.WORKING] * 4]
        regimes = [see(controller, judged(50.0, step), T0 + n) for n, step in enumerate(steps)]
        assert [regime.factor for regime in regimes] == [1, 0, 0, 0, 0, 1, 1]
        assert [regime.why for regime in regimes[:5]] == [Why.CALM, *[Why.STALLED] * 4]
        assert [regime.reopens_s for regime in regimes[1:5]] == [T0 + 4, T0 + 5, T0 + 5, T0 + 5]

    def test_a_loss_that_follows_a_stall_is_waited_for_too(self) -> None:
        controller = tiers()
        see(controller, judged(50.0, Finding.STALLED), T0)
        assert see(controller, view(None, 0.0), T0 + 1).reopens_s == T0 + 4
        back = [see(controller, judged(50.0, Finding.WORKING), T0 + 2 + n) for n in range(3)]
        assert [(regime.factor, regime.reopens_s) for regime in back] == [(0, T0 + 4), (0, T0 + 4), (1, 0)]

    def test_it_rises_by_the_recovery_step(self) -> None:
        controller = tiers(Hysteresis(recovery_step=0.4))
        see(controller, judged(50.0, Finding.STALLED), T0)
        factors = [see(controller, judged(50.0, Finding.IDLE), T0 + n).factor for n in range(1, 7)]
        assert factors == pytest.approx([0, 0, 0.4, 0.8, 1, 1])

    def test_degraded_leaves_the_mildest_tier_and_the_table_may_leave_less(self) -> None:
        controller = tiers()
        factors = [see(controller, judged(92.0, Finding.DEGRADED), T0 + n) for n in range(3)]
        assert [regime.factor for regime in factors] == [0.7, 0.7, 0.4]
        assert [regime.why for regime in factors] == [Why.DEGRADED, Why.DEGRADED, Why.TIER]

    @pytest.mark.parametrize("finding", [Finding.UNDERFED, Finding.PRODUCTIVE, Finding.UNKNOWN])
    def test_the_bands_stay_exact(self, finding: Finding) -> None:
        controller = tiers()
        factors = [see(controller, judged(100.0, finding), T0 + n).factor for n in range(3)]
        assert factors == [1, 1, 0]


class TestAdaptive:
    """What the gate confirms is load only if something comes out of the cards."""

    @pytest.mark.parametrize(
        ("finding", "signal", "cuts"),
        [
            (Finding.PRODUCTIVE, Signal.UTILIZATION, True),
            (Finding.UNKNOWN, Signal.UTILIZATION, True),
            (Finding.UNDERFED, Signal.UTILIZATION, False),
            (Finding.STALLED, Signal.UTILIZATION, False),
            (Finding.UNDERFED, Signal.PRESSURE, True),
            (Finding.STALLED, Signal.PRESSURE, False),
        ],
    )
    def test_who_cuts(self, finding: Finding, signal: Signal, cuts: bool) -> None:
        controller = adaptive(signal=signal)
        regimes = [
            controller.observe(judged(100.0, finding), waiting(), Work(p95_s=4.0, slo_s=2.0), T0 + n)
            for n in range(4)
        ]
        assert (regimes[-1].budget_rps is not None) is cuts
