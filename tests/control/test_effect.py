"""What verdicts mean for what may come in: a cap for ``tiers``, an excuse for ``adaptive``, a dead card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.control.signal import NO_EFFECT, effect
from autoglm_throttle.settings.groups.control import ControlSettings
from autoglm_throttle.types import ControlCause, GpuCondition, GpuVerdict, GpuView, ServiceStats, Signal
from tests.control.views import T0, adaptive, see, tiers, view, waiting

FINDINGS = st.sampled_from(GpuCondition)


def with_verdict(pct: float, *findings: GpuCondition, weights: tuple[float, ...] | None = None) -> GpuView:
    """A view of as many cards as findings, of equal weight unless it is said otherwise."""
    keys = [("", f"GPU-{n}") for n in range(len(findings))]
    shares = weights or (1.0 / len(findings),) * len(findings)
    return replace(
        view(pct),
        weights=dict(zip(keys, shares, strict=True)),
        verdicts={key: GpuVerdict(finding, T0, 1.0) for key, finding in zip(keys, findings, strict=True)},
    )


@pytest.mark.parametrize(
    ("findings", "factor", "why", "stalled", "underfed"),
    [
        ([GpuCondition.PRODUCTIVE, GpuCondition.WORKING], 1.0, None, False, False),
        ([GpuCondition.STALLED, GpuCondition.STALLED], 0.0, ControlCause.STALLED, True, False),
        ([GpuCondition.STALLED, GpuCondition.LOST], 0.0, ControlCause.STALLED, True, False),
        ([GpuCondition.STALLED, GpuCondition.WORKING], 0.5, ControlCause.STALLED, False, False),
        ([GpuCondition.STALLED, GpuCondition.DEGRADED], 0.35, ControlCause.STALLED, False, False),
        ([GpuCondition.DEGRADED], 0.7, ControlCause.DEGRADED, False, False),
        ([GpuCondition.UNDERFED, GpuCondition.IDLE], 1.0, None, False, True),
        ([GpuCondition.UNDERFED, GpuCondition.WORKING], 1.0, None, False, True),
        ([GpuCondition.UNDERFED, GpuCondition.PRODUCTIVE], 1.0, None, False, False),
        ([GpuCondition.UNDERFED, GpuCondition.UNKNOWN], 1.0, None, False, False),
        ([GpuCondition.LOST], 1.0, None, False, False),
        ([GpuCondition.THROTTLED, GpuCondition.STARVED], 1.0, None, False, False),
    ],
)
def test_each_finding_has_its_effect(
    findings: list[GpuCondition], factor: float, why: ControlCause | None, stalled: bool, underfed: bool
) -> None:
    found = effect(with_verdict(99.0, *findings))
    assert found.factor == pytest.approx(factor)
    assert found[1:] == (why, stalled, underfed)


def test_without_verdicts_there_is_no_effect() -> None:
    assert effect(view(99.0)) is NO_EFFECT


def test_device_counts_by_its_weight() -> None:
    assert effect(
        with_verdict(99.0, GpuCondition.STALLED, GpuCondition.WORKING, weights=(0.1, 0.9))
    ).factor == pytest.approx(0.9)


@given(st.lists(FINDINGS, min_size=1, max_size=6), st.data())
def test_a_worse_finding_never_lets_more_in(findings: list[GpuCondition], data: st.DataObject) -> None:
    before = effect(with_verdict(99.0, *findings)).factor
    at = data.draw(st.integers(0, len(findings) - 1))
    worse = [*findings[:at], GpuCondition.STALLED, *findings[at + 1 :]]
    after = effect(with_verdict(99.0, *worse)).factor
    assert 0.0 <= after <= before + 1e-12 or findings[at] is GpuCondition.LOST


class TestTiers:
    """The cap falls at once and rises like the table after an outage."""

    def test_stall_rejects_all_until_three_good_samples(self) -> None:
        controller = tiers()
        steps = [
            GpuCondition.WORKING,
            GpuCondition.STALLED,
            GpuCondition.STALLED,
            *[GpuCondition.WORKING] * 4,
        ]
        states = [see(controller, with_verdict(50.0, step), T0 + n) for n, step in enumerate(steps)]
        assert [state.factor for state in states] == [1, 0, 0, 0, 0, 1, 1]
        assert [state.cause for state in states[:5]] == [ControlCause.CALM, *[ControlCause.STALLED] * 4]
        assert [state.may_rise_at_s for state in states[1:5]] == [T0 + 4, T0 + 5, T0 + 5, T0 + 5]

    def test_a_loss_that_follows_a_stall_is_waited_for_too(self) -> None:
        controller = tiers()
        see(controller, with_verdict(50.0, GpuCondition.STALLED), T0)
        assert see(controller, view(None, 0.0), T0 + 1).may_rise_at_s == T0 + 4
        back = [see(controller, with_verdict(50.0, GpuCondition.WORKING), T0 + 2 + n) for n in range(3)]
        assert [(state.factor, state.may_rise_at_s) for state in back] == [
            (0, T0 + 4),
            (0, T0 + 4),
            (1, 0),
        ]

    def test_it_rises_by_the_recovery_step(self) -> None:
        controller = tiers(ControlSettings(tier_recovery_step=0.4))
        see(controller, with_verdict(50.0, GpuCondition.STALLED), T0)
        factors = [see(controller, with_verdict(50.0, GpuCondition.IDLE), T0 + n).factor for n in range(1, 7)]
        assert factors == pytest.approx([0, 0, 0.4, 0.8, 1, 1])

    def test_degraded_leaves_the_mildest_tier_and_the_table_may_leave_less(self) -> None:
        controller = tiers()
        factors = [see(controller, with_verdict(92.0, GpuCondition.DEGRADED), T0 + n) for n in range(3)]
        assert [state.factor for state in factors] == [0.7, 0.7, 0.4]
        assert [state.cause for state in factors] == [
            ControlCause.DEGRADED,
            ControlCause.DEGRADED,
            ControlCause.TIER,
        ]

    @pytest.mark.parametrize(
        "finding", [GpuCondition.UNDERFED, GpuCondition.PRODUCTIVE, GpuCondition.UNKNOWN]
    )
    def test_the_bands_stay_exact(self, finding: GpuCondition) -> None:
        controller = tiers()
        factors = [see(controller, with_verdict(100.0, finding), T0 + n).factor for n in range(3)]
        assert factors == [1, 1, 0]


class TestAdaptive:
    """What the gate confirms is load only if something comes out of the cards."""

    @pytest.mark.parametrize(
        ("finding", "signal", "cuts"),
        [
            (GpuCondition.PRODUCTIVE, Signal.UTILIZATION, True),
            (GpuCondition.UNKNOWN, Signal.UTILIZATION, True),
            (GpuCondition.UNDERFED, Signal.UTILIZATION, False),
            (GpuCondition.STALLED, Signal.UTILIZATION, False),
            (GpuCondition.UNDERFED, Signal.PRESSURE, True),
            (GpuCondition.STALLED, Signal.PRESSURE, False),
        ],
    )
    def test_conditions_that_reduce_the_budget(
        self, finding: GpuCondition, signal: Signal, cuts: bool
    ) -> None:
        controller = adaptive(ControlSettings(signal=signal))
        states = [
            controller.observe(
                with_verdict(100.0, finding), waiting(), ServiceStats(p95_s=4.0, slo_s=2.0), T0 + n
            )
            for n in range(4)
        ]
        assert (states[-1].budget_rps is not None) is cuts
