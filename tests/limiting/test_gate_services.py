"""The gate before services that it must get to know: a memory that is kept, one that cannot do much."""

from __future__ import annotations

import pytest

from autoglm_throttle.limiting.gate import Gate, GateRules
from autoglm_throttle.model import Demand, Outcome, Priority
from tests.limiting.gate_plant import Memory, Plant

HIGH = Priority.HIGH


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("keeps", [True, False])
def test_after_a_calm_time_the_memory_allows_as_many_as_before(keeps: bool, seed: int) -> None:
    rate = 100.0
    calm, flood = (rate / 2, 0.0, 0.0), (5 * rate, 0.0, 0.0)
    plant = Plant(GateRules(), rate, 0.1, seed, Memory(keeps=keeps, each=0.02))
    for load, seconds in ((calm, 30.0), (flood, 20.0), (calm, 120.0)):
        plant.run(seconds, load)
        assert plant.gate.view(plant.now).memory_cap == pytest.approx(26.0, abs=0.5)
    plant.forget()
    plant.run(20.0, flood)
    assert plant.served[HIGH] >= 0.95 * 20.0 * rate
    assert plant.gate.view(plant.now).memory_cap == pytest.approx(26.0, abs=0.5)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_first_flood_after_a_calm_time_does_not_fill_the_memory(keeps: bool) -> None:
    memory = Memory(keeps=keeps, each=0.02)
    plant = Plant(GateRules(), 100.0, 0.1, memory=memory)
    plant.run(20.0, (50.0, 0.0, 0.0))
    plant.run(10.0, (1000.0, 0.0, 0.0))
    assert memory.most <= 30, "there is room for no more"


def test_the_memory_is_told_the_most_inside_since_it_was_last_asked() -> None:
    tested = Gate(GateRules(), 0.0)
    tested.memory(0.40)
    for _ in range(10):
        tested.enter(Demand(HIGH), 0.1)
    for _ in range(9):
        tested.finish(0.1, Outcome.SUCCESS, 0.2)
    tested.advance(0.6)
    for _ in range(4):  # five inside, in another period
        tested.enter(Demand(HIGH), 0.7)
    for _ in range(4):
        tested.finish(0.7, Outcome.SUCCESS, 0.8)
    tested.memory(0.60)
    assert tested.view(0.8).memory_cap == pytest.approx(26.0), "ten, and not the one that is left"
    tested.memory(0.65)
    for _ in range(11):
        tested.enter(Demand(HIGH), 0.9)
    for _ in range(11):
        tested.finish(0.9, Outcome.SUCCESS, 1.0)
    tested.memory(0.65)
    assert tested.view(1.0).memory_cap == pytest.approx(0.52 * 12 / 0.25)


@pytest.mark.parametrize(("rate", "latency_s"), [(4.0, 0.25), (10.0, 0.1)])
def test_a_small_service_is_not_met_with_a_flood(rate: float, latency_s: float) -> None:
    plant = Plant(GateRules(), rate, latency_s)
    plant.run(60.0, (0.9 * rate, 0.0, 0.0))
    assert plant.refused[HIGH] <= 0.05 * plant.offered[HIGH]
    assert plant.gate.limit <= 10, "64 would be inside for six seconds at least"
    plant.run(1.0, (20 * rate, 0.0, 0.0))
    assert plant.gate.in_flight <= 10


def test_a_service_that_answers_in_time_is_not_lowered() -> None:
    plant = Plant(GateRules(), 100.0, 0.1)
    plant.run(60.0, (80.0, 0.0, 0.0))
    assert plant.gate.limit == 64.0
