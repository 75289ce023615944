"""The gate before services that it must get to know: a memory that is kept, one that cannot do much."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.settings.groups.control import ConcurrencySettings
from autoglm_throttle.types import Outcome, Priority
from tests.limiting.measured_limiters import limiter, release, start
from tests.limiting.service_plant import Memory, Plant

pytestmark = pytest.mark.untraced

HIGH = Priority.HIGH


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("keeps", [True, False])
def test_after_a_calm_time_the_memory_allows_as_many_as_before(keeps: bool, seed: int) -> None:
    rate = 100.0
    calm, flood = (rate / 2, 0.0, 0.0), (5 * rate, 0.0, 0.0)
    plant = Plant(ConcurrencySettings(), rate, 0.1, seed, Memory(keeps=keeps, each=0.02))
    for load, seconds in ((calm, 30.0), (flood, 20.0), (calm, 120.0)):
        plant.run(seconds, load)
        assert plant.limiter.view(plant.now).memory_cap == pytest.approx(26.0, abs=0.5)
    plant.forget()
    plant.run(20.0, flood)
    assert plant.served[HIGH] >= 0.95 * 20.0 * rate
    assert plant.limiter.view(plant.now).memory_cap == pytest.approx(26.0, abs=0.5)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_first_flood_after_a_calm_time_does_not_fill_the_memory(keeps: bool) -> None:
    memory = Memory(keeps=keeps, each=0.02)
    plant = Plant(ConcurrencySettings(), 100.0, 0.1, memory=memory)
    plant.run(20.0, (50.0, 0.0, 0.0))
    plant.run(10.0, (1000.0, 0.0, 0.0))
    assert memory.most <= 30, "there is room for no more"


class Told:
    """In the place of the memory's cap: what it is told."""

    requests = 64.0
    peak = 0

    def __init__(self) -> None:
        self.heard: list[tuple[float, int, int, bool]] = []

    def learn(self, ratio: float, in_flight: int, peak: int, *, untouched: bool) -> None:
        self.heard.append((ratio, in_flight, max(peak, self.peak), untouched))
        self.peak = 0


def visit(tested: AdaptiveConcurrencyLimiter, number: int, now: float, *, stay: int = 0) -> None:
    """So many come at once, and all but some leave."""
    for _ in range(number):
        start(tested, HIGH, now)
    for _ in range(number - stay):
        release(tested, now, Outcome.SUCCESS, now + 0.1)


def test_memory_cap_gets_in_flight_and_peak_since_last_update() -> None:
    tested, reported = limiter(), Told()
    tested.adaptive.memory = reported  # type: ignore[assignment]
    tested.update_memory(0.40)
    visit(tested, 10, 0.1, stay=1)
    for period in (0.6, 1.2):
        visit(tested, 4, period)
    tested.update_memory(0.60)
    visit(tested, 6, 1.8)
    tested.update_memory(0.60)
    visit(tested, 2, 2.4)
    visit(tested, 2, 3.0)
    tested.update_memory(0.60)
    assert reported.heard == [
        (0.40, 0, 0, True),
        (0.60, 1, 10, False),
        (0.60, 1, 7, False),
        (0.60, 1, 7, False),
    ]
    visit(tested, 2, 3.6)
    tested.update_memory(0.60)
    assert reported.heard[-1] == (0.60, 1, 3, False), "at most one period too far back"


@pytest.mark.parametrize(("rate", "latency_s"), [(4.0, 0.25), (10.0, 0.1)])
def test_a_small_service_is_not_met_with_a_flood(rate: float, latency_s: float) -> None:
    plant = Plant(ConcurrencySettings(slo_s=2.0), rate, latency_s)
    plant.run(60.0, (0.9 * rate, 0.0, 0.0))
    assert plant.refused[HIGH] <= 0.08 * plant.offered[HIGH]
    assert plant.limiter.limit <= 10, "64 would be inside for six seconds at least"
    plant.run(1.0, (20 * rate, 0.0, 0.0))
    assert plant.limiter.in_flight <= 10


def test_a_service_that_answers_in_time_is_not_lowered() -> None:
    plant = Plant(ConcurrencySettings(slo_s=2.0, inflight_start=64), 100.0, 0.1)
    plant.run(60.0, (80.0, 0.0, 0.0))
    assert plant.limiter.limit == 64.0


@pytest.mark.parametrize(
    ("settings", "rate_rps", "limit"),
    [
        ({}, 1.0, 16.0),  # one at a time
        ({"inflight_start": 64}, 1.0, 64.0),  # it was set
        ({"slo_s": 2.0, "inflight_start": 64}, 1.0, 64.0),
    ],
)
def test_once_an_objective_is_learned_the_first_limit_is_that_of_a_set_one(
    settings: dict[str, Any], rate_rps: float, limit: float
) -> None:
    plant = Plant(ConcurrencySettings(**settings), 100.0, 0.1)
    plant.run(20.0, (rate_rps, 0.0, 0.0))
    assert plant.limiter.limit == limit


def test_many_workers_keep_a_slot_each_once_an_objective_is_learned() -> None:
    tested = AdaptiveConcurrencyLimiter(ConcurrencySettings(), 0.0, memory_target=0.92, workers=64)
    work_class = tested.work_classes[""]
    for now in range(1, 10):
        tested.close_period(float(now))
        work_class.learned_slo_s = 2.0  # as after requests that were not counted: no slot was in use
        work_class.done, work_class.total_s = 1, 0.01
        tested.period.ended, tested.period.peak = [work_class], 0
    assert tested.capacity == 1


def test_the_first_limit_stays_above_what_was_in_flight() -> None:
    plant = Plant(ConcurrencySettings(), 1000.0, 0.2)
    plant.run(20.0, (100.0, 0.0, 0.0))
    assert 40.0 <= plant.limiter.limit < 64.0
