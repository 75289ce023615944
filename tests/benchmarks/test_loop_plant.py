"""The modelled services: batches, speed, memory, and what their cards show."""

from __future__ import annotations

import pytest

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.llm_plant import LlmPlant, LlmPlantSpec
from benchmarks.loop.plant import PlantSpec
from tests.benchmarks.loop_plant import Notes, batch_plant, requests

pytestmark = pytest.mark.slow

SPEC = PlantSpec(batch=2, base_s=0.1, item_s=0.2)


def test_the_standard_service_does_a_hundred_a_second() -> None:
    assert PlantSpec().capacity_rps == pytest.approx(100.0)
    assert PlantSpec().full_s == pytest.approx(0.16)


def test_idle_replica_takes_waiting_requests_then_a_full_batch() -> None:
    plant, agenda, notes = batch_plant(SPEC)
    for request in requests(4):
        plant.enter(request)
    agenda.until(10.0)
    assert notes.ends == [(0.3, 0, True), (0.8, 1, True), (0.8, 2, True), (1.1, 3, True)]
    assert notes.settlements == [0.3, 0.8, 1.1]
    assert plant.inside == 0


def test_costs_lengthen_a_batch() -> None:
    plant, agenda, notes = batch_plant(SPEC)
    plant.enter(requests(1, cost=3.0)[0])
    agenda.until(10.0)
    assert notes.ends == [(0.7, 0, True)]


def test_speed_change_applies_to_the_running_batch() -> None:
    plant, agenda, notes = batch_plant(SPEC)
    plant.enter(requests(1)[0])
    agenda.at(0.1, plant.speed, (-1, 0.5))
    agenda.at(0.3, plant.speed, (0, 2.0))
    agenda.until(10.0)
    # 0.1 s at full speed, 0.2 s at half of it: 0.1 s of work are left, at twice the speed
    assert notes.ends == [(0.35, 0, True)]


def test_shortest_queue_is_chosen() -> None:
    plant, _, _ = batch_plant(PlantSpec(replicas=2, batch=2, base_s=0.1, item_s=0.2))
    for request in requests(3):
        plant.enter(request)
    assert [replica.inside for replica in plant.replicas] == [2, 1]


def test_when_memory_runs_out_all_is_lost_and_the_process_is_away() -> None:
    plant, agenda, notes = batch_plant(PlantSpec(batch=2, base_s=0.1, item_s=0.2, memory_each=0.2))
    first, *others = requests(7)
    for request in (first, *others[:3]):  # room for (1 - 0.4) / 0.2 = 3
        plant.enter(request)
    assert (plant.kills, plant.inside) == (1, 0)
    assert notes.ends == [(0.0, number, False) for number in range(4)]
    agenda.until(4.9)
    plant.enter(others[3])
    agenda.until(5.1)
    assert notes.ends[-1] == (4.901, 4, False)
    plant.enter(others[4])
    agenda.until(10.0)
    assert notes.ends[-1] == (5.4, 5, True)


def test_gpu_utilization_is_the_busy_time() -> None:
    plant, agenda, _ = batch_plant(PlantSpec(batch=2, base_s=0.1, item_s=0.2, memory_each=0.1))
    plant.enter(requests(1)[0])
    agenda.until(0.2)
    [card] = plant.cards()
    assert card.utilization_pct == pytest.approx(100.0)
    assert card.work == pytest.approx(0.5)
    assert card.memory == pytest.approx(0.5)
    agenda.until(0.6)
    [card] = plant.cards()
    assert card.utilization_pct == pytest.approx(25.0)
    assert card.memory == pytest.approx(0.4)


def test_a_batchy_service_reads_as_fully_busy_at_half_load() -> None:
    plant, agenda, _ = batch_plant(PlantSpec(base_s=0.040, item_s=0.0075))
    for number, request in enumerate(requests(1000)):
        agenda.at(number / 50.0, plant.enter, request)
    agenda.until(20.0)
    [card] = plant.cards()
    assert card.utilization_pct > 95.0
    assert card.work < 0.3


def test_sequences_share_the_steps_of_a_continuous_batch() -> None:
    spec = LlmPlantSpec(step_s=0.1, per_sequence_s=0.1, steps=2, batch=2)
    assert spec.capacity_rps == pytest.approx(2 / 0.6)
    agenda = Agenda()
    notes = Notes(agenda)
    plant = LlmPlant(spec, agenda, notes)
    for request in requests(3):
        plant.enter(request)
    agenda.until(10.0)
    # alone for a step of 0.2 s, then two for one of 0.3 s; the third joins when the first has ended
    assert notes.ends == [(0.5, 0, True), (0.8, 1, True), (1.0, 2, True)]
    assert plant.inside == 0
    [card] = plant.cards()
    assert card.utilization_pct == pytest.approx(10.0)


def test_no_scenario_changes_the_speed_of_a_continuous_batch() -> None:
    agenda = Agenda()
    with pytest.raises(NotImplementedError):
        LlmPlant(LlmPlantSpec(), agenda, Notes(agenda)).speed((-1, 0.5))
