"""The scenario of the demonstration: its sizes fit each other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.testing.simulated import (
    CHARS_PER_TOKEN,
    BatchSpec,
    Item,
    LlmSpec,
    SimulatedGpu,
    service,
)
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.types import Policy, Priority
from benchmarks.replay import made_up
from examples.demo import scenario
from tests.traffic.test_trace import synthetic, written

INTERVAL_S = 0.5


def readings(plan: LoadPlan, name: str) -> list[float]:
    """GPU utilization in a phase if every request is admitted, from 1 s after its start."""
    sim = SimulatedGpu(scenario.gpu_spec(None))
    sent = [
        offset
        for offset, segment in zip(plan.offsets, plan.segments, strict=True)
        if plan.names[segment] == name
    ]
    at_s, read = sent[0] + 1.0, []
    for number, offset in enumerate(sent):
        while offset > at_s:
            read.append(sim.sample(at_s).utilization_pct or 0.0)
            at_s += INTERVAL_S
        sim.submit(Item(number), offset)
    return read


@pytest.mark.parametrize(
    ("name", "above", "to"), [("calm", 0, 85), ("0.86x", 85, 90), ("0.91x", 90, 95), ("2x", 95, 100)]
)
def test_the_load_of_a_phase_is_read_in_its_band_of_the_table(name: str, above: float, to: float) -> None:
    read = readings(scenario.phases(scenario.SECONDS).plan, name)
    assert len(read) >= 3
    assert all(above < pct <= to for pct in read)


@pytest.mark.parametrize("name", scenario.OVERLOADED)
def test_admitted_rate_can_overload_the_simulated_gpu(name: str) -> None:
    settings = Settings.from_env(scenario.environment(Policy.CONCURRENCY))
    load = next(load for phase, load, _ in scenario.PHASES if phase == name)
    offered = {
        p: scenario.CAPACITY_RPS * load * share for p, share in zip(Priority, (0.1, 0.3, 0.6), strict=True)
    }
    rated = sum(min(offered[p], settings.rates.rates_rps[p]) for p in Priority)
    shares = [(rank + 1.0) ** -scenario.PRIORITY_MIX.skew for rank in range(scenario.PRIORITY_MIX.clients)]
    (limit,) = settings.users.user_limit
    let_in = sum(min(rated * share / sum(shares), limit.limit / limit.window_s) for share in shares)
    assert let_in > 1.2 * scenario.CAPACITY_RPS


@pytest.mark.parametrize("name", ["0.86x", "0.91x"])
def test_tier_steps_cause_visible_rejections(name: str) -> None:
    load = next(load for phase, load, _ in scenario.PHASES if phase == name)
    low_rps = 0.6 * load * scenario.CAPACITY_RPS
    assert 70.0 < low_rps < 100.0


def test_phases_scale_with_the_length() -> None:
    played_s = scenario.phases(12.0)
    assert played_s.length_s == pytest.approx(12.0)
    planned = played_s.plan.planned()
    for segment, (_, load, share) in enumerate(scenario.PHASES):
        wanted = scenario.CAPACITY_RPS * load * share * 12.0
        count = sum(planned[segment, priority] for priority in Priority)
        assert count == pytest.approx(wanted, abs=5.0 * wanted**0.5)


def test_a_trace_becomes_requests_with_its_tokens(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["2024-01-01 00:00:00,7,0", "2024-01-01 00:00:10,9,5", *synthetic(1)])
    whole = scenario.traced(path, 20.0, None)
    assert list(whole.plan.offsets)[:2] == [0.0, 0.5]
    bodies = [whole.load.requests[kind].body for kind in whole.plan.kinds]
    assert bodies[:2] == [b'{"context_tokens": 7, "tokens": 1}', b'{"context_tokens": 9, "tokens": 5}']
    assert len(scenario.traced(path, 20.0, 0.6).plan) == 2
    with pytest.raises(TrafficError):
        scenario.traced(tmp_path / "none.csv", 20.0, None)


def test_simulated_gpu_fits_the_scenario() -> None:
    assert isinstance(scenario.gpu_spec(None).work, BatchSpec)
    fast = scenario.gpu_spec(10.0).work
    assert isinstance(fast, LlmSpec)
    assert fast.step_s == LlmSpec().step_s / 10.0


def rejected(scene: scenario.Scenario, settings: Settings) -> Counter[tuple[Priority, str]]:
    """Rejections of a trace in virtual time, by priority and reason."""
    clock = ManualClock()
    sim = SimulatedGpu(scenario.gpu_spec(scene.speed), clock=clock)
    throttle = Throttle(settings, gpu=sim, clock=clock, sampling="manual")
    app = ThrottleMiddleware(service(sim), throttle=throttle)

    def watch(_: float) -> None:
        throttle.tick()

    result = run_inprocess(app, scene.load, clock=clock, watch=watch)
    log, priorities = result.request_log, map(Priority, scene.plan.priorities)
    return Counter(
        (priority, log.reason_texts[reason].partition(":")[0])
        for priority, reason in zip(priorities, log.reasons, strict=True)
        if reason
    )


# FIELD.md, row 35
@pytest.mark.slow
def test_faster_trace_is_rejected_by_its_load_low_first(tmp_path: Path) -> None:
    scene = scenario.traced(made_up(tmp_path / "t.csv", 1), 60.0, 8.0)
    environ = scenario.environment(Policy.ADAPTIVE, None, scene.length_s, scene.speed)
    found = rejected(scene, Settings.from_env(environ))
    assert {reason for _, reason in found} == {"queue"}
    assert {priority for priority, _ in found} == {Priority.LOW}


def test_llm_scenario_offers_each_phase_and_fits_the_engine() -> None:
    load = scenario.llm_phases(60.0)
    assert load.llm
    assert list(load.plan.names) == [name for name, _, _ in scenario.PHASES]
    bodies = [request.body for request in load.load.requests]
    assert max(map(len, bodies)) < CHARS_PER_TOKEN * scenario.LLM_SPEC.max_model_len
    assert set(load.plan.kinds) == set(range(len(bodies)))
    settings = scenario.environment(Policy.ADAPTIVE, llm=True)
    assert float(settings["AUTOGLM_THROTTLE_SLO_S"]) == pytest.approx(170.0 / 24.0, abs=0.01)


def test_limits_scale_with_the_speed_of_a_trace() -> None:
    by_speed = {}
    for speed in (None, 20.0, 60.0):
        settings = Settings.from_env(scenario.environment(Policy.ADAPTIVE, speed=speed))
        (limit,) = settings.users.user_limit
        by_speed[speed] = (limit.limit, 1.0 / (settings.concurrency.slo_s or 0.0), *settings.rates.rates_rps)
    assert by_speed[None] == by_speed[20.0] == (60, 1.0, *Settings().rates.rates_rps)
    assert by_speed[60.0] == pytest.approx([3 * number for number in by_speed[20.0]], rel=1e-5)


@pytest.mark.parametrize("policy", Policy)
def test_the_environment_is_one_the_settings_accept(policy: Policy) -> None:
    settings = Settings.from_env(scenario.environment(policy))
    assert settings.control.policy is policy
    assert scenario.STATE_PATH in settings.callers.exempt_paths
    assert settings.users.user_limit
