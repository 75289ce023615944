"""The real throttle in a closed loop: what is served under overload, asserted.

A part of ``benchmarks/closed_loop.py`` with one seed, where a scenario takes tenths of a second of CPU.
The bars are those of the benchmark, which has five seeds.
"""

from __future__ import annotations

import functools

import pytest

from benchmarks.loop import study
from benchmarks.loop.measures import Figures
from benchmarks.loop.scenarios import SCENARIOS, Scenario

pytestmark = [pytest.mark.untraced, pytest.mark.slow]

LIMITERS = ("oracle", "tiers", "concurrency", "adaptive")
CONCURRENCY_POLICIES = ("concurrency", "adaptive")


@functools.cache
def figures(name: str) -> dict[str, Figures]:
    return study.work(study.Task(SCENARIOS[name], 1, study.plain(LIMITERS))).figures


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["step_2x", "step_5x", "step_10x"])
def test_constant_overload_is_served_as_by_an_oracle(name: str, limiter: str) -> None:
    seen = figures(name)[limiter]
    assert seen.goodput >= 0.98
    assert seen.high >= 0.95
    assert seen.react_s is not None
    assert seen.react_s <= 1.0
    assert seen.high_p99_s is not None
    if name != "step_10x":  # there the high class alone is all that the service can do
        assert seen.high_p99_s <= 0.8
        assert seen.reversals == 0


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["steady_0.5x", "steady_0.5x_batchy", "fake_busy_0.3x"])
def test_half_load_is_never_rejected_however_busy_the_gpu_looks(name: str, limiter: str) -> None:
    assert figures(name)[limiter].refused == 0.0


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["bursts_0.5x", "bursts_0.2x"])
def test_bursts_within_the_ceilings_pass_on_a_calm_service(name: str, limiter: str) -> None:
    assert figures(name)[limiter].refused <= 0.02


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["oom_3x", "oom_tight_3x"])
def test_memory_does_not_run_out(name: str, limiter: str) -> None:
    seen = figures(name)[limiter]
    assert seen.kills == 0
    assert seen.goodput >= 0.98


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["spike_10x_10s", "retry_2x_20s", "cap_half_0.9x", "stall_8s_0.5x"])
def test_recovery_follows_soon_after_the_disturbance(name: str, limiter: str) -> None:
    seen = figures(name)[limiter]
    assert seen.goodput >= 0.95
    assert seen.high >= 0.95
    assert seen.recover_s is not None
    assert seen.recover_s <= 5.0


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize(("name", "bar"), [("slow_2x", 0.97), ("llm_2x", 0.95), ("llm_slo_unset_0.7x", 0.95)])
def test_slow_services_are_used_as_well(name: str, bar: float, limiter: str) -> None:
    seen = figures(name)[limiter]
    assert seen.goodput >= bar
    assert seen.high >= 0.95


@pytest.mark.parametrize("limiter", CONCURRENCY_POLICIES)
@pytest.mark.parametrize("name", ["sawtooth_0.3-3x", "heavy_tail_2x", "hot_gpu_0.6x-2x"])
def test_changing_loads_costs_and_gpus_are_followed(name: str, limiter: str) -> None:
    seen = figures(name)[limiter]
    assert seen.goodput >= 0.95
    assert seen.high >= 0.97


def test_tiers_alone_fail_where_the_concurrency_limit_holds() -> None:
    assert figures("step_5x")["tiers"].goodput < 0.6
    assert figures("fake_busy_0.3x")["tiers"].refused > 0.3
    assert figures("step_5x")["tiers"].reversals >= 4


def test_a_run_gives_the_same_figures_again() -> None:
    scenario: Scenario = SCENARIOS["step_2x"]
    task = study.Task(scenario, 1, study.plain(LIMITERS))
    assert study.work(task).figures == figures("step_2x")
