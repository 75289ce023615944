"""The simulated services: batches, speed, memory, and the readings of their devices."""

from __future__ import annotations

import pytest

from benchmarks.loop.llm_plant import LlmPlant, LlmPlantSpec
from benchmarks.loop.plant import PlantSpec
from benchmarks.loop.scheduler import EventScheduler
from tests.benchmarks.loop_plant import RecordingListener, batch_plant, requests

pytestmark = pytest.mark.slow

SPEC = PlantSpec(batch=2, base_s=0.1, item_s=0.2)


def test_the_standard_service_does_a_hundred_a_second() -> None:
    assert PlantSpec().capacity_rps == pytest.approx(100.0)
    assert PlantSpec().full_s == pytest.approx(0.16)


def test_idle_replica_takes_waiting_requests_then_a_full_batch() -> None:
    plant, scheduler, recorded = batch_plant(SPEC)
    for request in requests(4):
        plant.admit(request)
    scheduler.until(10.0)
    assert recorded.ends == [(0.3, 0, True), (0.8, 1, True), (0.8, 2, True), (1.1, 3, True)]
    assert recorded.settlements == [0.3, 0.8, 1.1]
    assert plant.inside == 0


def test_costs_lengthen_a_batch() -> None:
    plant, scheduler, recorded = batch_plant(SPEC)
    plant.admit(requests(1, cost=3.0)[0])
    scheduler.until(10.0)
    assert recorded.ends == [(0.7, 0, True)]


def test_speed_change_applies_to_the_running_batch() -> None:
    plant, scheduler, recorded = batch_plant(SPEC)
    plant.admit(requests(1)[0])
    scheduler.at(0.1, plant.speed, (-1, 0.5))
    scheduler.at(0.3, plant.speed, (0, 2.0))
    scheduler.until(10.0)
    # 0.1 s at full speed, 0.2 s at half of it: 0.1 s of work are left, at twice the speed
    assert recorded.ends == [(0.35, 0, True)]


def test_shortest_queue_is_chosen() -> None:
    plant, _, _ = batch_plant(PlantSpec(replicas=2, batch=2, base_s=0.1, item_s=0.2))
    for request in requests(3):
        plant.admit(request)
    assert [replica.inside for replica in plant.replicas] == [2, 1]


def test_out_of_memory_loses_all_requests_and_restarts() -> None:
    plant, scheduler, recorded = batch_plant(PlantSpec(batch=2, base_s=0.1, item_s=0.2, memory_each=0.2))
    first, *others = requests(7)
    for request in (first, *others[:3]):  # room for (1 - 0.4) / 0.2 = 3
        plant.admit(request)
    assert (plant.kills, plant.inside) == (1, 0)
    assert recorded.ends == [(0.0, number, False) for number in range(4)]
    scheduler.until(4.9)
    plant.admit(others[3])
    scheduler.until(5.1)
    assert recorded.ends[-1] == (4.901, 4, False)
    plant.admit(others[4])
    scheduler.until(10.0)
    assert recorded.ends[-1] == (5.4, 5, True)


def test_gpu_utilization_is_the_busy_time() -> None:
    plant, scheduler, _ = batch_plant(PlantSpec(batch=2, base_s=0.1, item_s=0.2, memory_each=0.1))
    plant.admit(requests(1)[0])
    scheduler.until(0.2)
    [reading] = plant.readings()
    assert reading.utilization_pct == pytest.approx(100.0)
    assert reading.work == pytest.approx(0.5)
    assert reading.memory == pytest.approx(0.5)
    scheduler.until(0.6)
    [reading] = plant.readings()
    assert reading.utilization_pct == pytest.approx(25.0)
    assert reading.memory == pytest.approx(0.4)


def test_a_batchy_service_reads_as_fully_busy_at_half_load() -> None:
    plant, scheduler, _ = batch_plant(PlantSpec(base_s=0.040, item_s=0.0075))
    for number, request in enumerate(requests(1000)):
        scheduler.at(number / 50.0, plant.admit, request)
    scheduler.until(20.0)
    [reading] = plant.readings()
    assert reading.utilization_pct > 95.0
    assert reading.work < 0.3


def test_sequences_share_the_steps_of_a_continuous_batch() -> None:
    spec = LlmPlantSpec(step_s=0.1, per_sequence_s=0.1, steps=2, batch=2)
    assert spec.capacity_rps == pytest.approx(2 / 0.6)
    scheduler = EventScheduler()
    recorded = RecordingListener(scheduler)
    plant = LlmPlant(spec, scheduler, recorded)
    for request in requests(3):
        plant.admit(request)
    scheduler.until(10.0)
    # alone for a step of 0.2 s, then two for one of 0.3 s; the third joins when the first has ended
    assert recorded.ends == [(0.5, 0, True), (0.8, 1, True), (1.0, 2, True)]
    assert plant.inside == 0
    [reading] = plant.readings()
    assert reading.utilization_pct == pytest.approx(10.0)


def test_no_scenario_changes_the_speed_of_a_continuous_batch() -> None:
    scheduler = EventScheduler()
    with pytest.raises(NotImplementedError):
        LlmPlant(LlmPlantSpec(), scheduler, RecordingListener(scheduler)).speed((-1, 0.5))
