"""The requests of a run: drawn once, at the offered load, the same for every limiter."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from benchmarks.loop.clients import COST_MAX, LEAST_COST, mean_cost, plan
from benchmarks.loop.offered_load import Load
from benchmarks.loop.scenarios import BURSTS, SCENARIOS, SIXTEEN
from benchmarks.loop.scheduler import EventScheduler

pytestmark = pytest.mark.slow


def test_there_are_sixteen_scenarios_and_some_beside_them() -> None:
    assert len(SIXTEEN) == 16
    assert {name for name, one in SCENARIOS.items() if not one.of_16} == {
        "slow_2x",
        "llm_2x",
        "llm_slo_unset_0.7x",
        "bursts_0.5x",
        "bursts_0.2x",
    }


def test_the_same_seed_draws_the_same_requests() -> None:
    scenario = SCENARIOS["retry_2x_20s"]
    assert plan(scenario, 1) == plan(scenario, 1)
    assert plan(scenario, 1).at_s != plan(scenario, 2).at_s


def test_rates_and_shares_are_those_of_the_scenario() -> None:
    drawn = plan(SCENARIOS["step_5x"], 1)
    calm = [at_s for at_s in drawn.at_s if at_s < 15.0]
    assert len(calm) == pytest.approx(15 * 50, rel=0.1)
    assert len(drawn.at_s) - len(calm) == pytest.approx(45 * 500, rel=0.03)
    shares = [drawn.priority.count(priority) / len(drawn.at_s) for priority in range(3)]
    assert shares == pytest.approx([0.1, 0.3, 0.6], abs=0.01)
    assert drawn.at_s == sorted(drawn.at_s)


def test_a_ramp_rises() -> None:
    drawn = plan(SCENARIOS["slow_ramp_0.3-3x"], 1)
    thirds = [sum(30.0 * n <= at_s < 30.0 * (n + 1) for at_s in drawn.at_s) for n in range(3)]
    assert thirds == pytest.approx([30 * 75, 30 * 165, 30 * 255], rel=0.06)


def test_pareto_costs_have_the_mean_one() -> None:
    assert mean_cost(LEAST_COST) == pytest.approx(1.0)
    costs = plan(replace(SCENARIOS["heavy_tail_2x"], load=Load(((0.0, 9.0, 9.0),), 60.0)), 1).cost
    assert statistics.fmean(costs) == pytest.approx(1.0, rel=0.05)
    assert min(costs) >= LEAST_COST
    assert max(costs) <= COST_MAX


def test_waits_before_repetitions_are_drawn_with_the_request() -> None:
    waits = plan(SCENARIOS["retry_2x_20s"], 1).patience
    assert {len(row) for row in waits} == {3}
    assert all(0.5 <= wait <= 1.5 for row in waits for wait in row)


def test_bursts_come_at_the_start_of_each_second() -> None:
    drawn = plan(BURSTS[0], 1)
    assert [drawn.priority.count(priority) for priority in range(3)] == [27000, 13500, 2700]
    assert all(at_s % 1.0 <= 0.2 for at_s in drawn.at_s)


def test_scheduler_keeps_the_order_of_times_and_of_scheduling() -> None:
    scheduler = EventScheduler()
    seen: list[tuple[float, str]] = []
    for when_s, what in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "late")):
        scheduler.at(when_s, lambda name: seen.append((scheduler.now, name)), what)
    scheduler.until(3.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert scheduler.clock() == 3.0
    scheduler.at(1.0, lambda name: seen.append((scheduler.now, name)), "never in the past")
    scheduler.until(4.0)
    assert seen[-2:] == [(3.0, "late"), (3.0, "never in the past")]
