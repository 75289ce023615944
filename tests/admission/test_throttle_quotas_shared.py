"""Several processes with quotas on one GPU: their views, and their bounded excess."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle import Demand, Permit, Priority, Throttle
from autoglm_throttle.control.memory import FillBasis
from autoglm_throttle.control.quota import QuotaView
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from tests.admission.limited_throttle import HIGH_RATES

GB = 10**9
TOTAL_GB = 100
CAP = 0.705
"""Quota of mid: a fraction of a GB, so that rounding has no effect."""

HIGH, MID, LOW = Priority


class SharedDevice:
    """A GPU, or an engine, that holds the memory of the requests of all workers, sampled by each worker."""

    def __init__(self, workers: int, each_gb: int, **made: Any) -> None:
        self.clock = ManualClock()
        self.gpu = FakeGpu(clock=self.clock, **made)
        self.gpu.memory_total_bytes = TOTAL_GB * GB
        self.each_gb = each_gb
        self.workers: list[Throttle] = []
        self.inside: list[list[Permit]] = []
        for _ in range(workers):
            self.start_worker()
        self.sample()

    @property
    def full_gb(self) -> int:
        return self.each_gb * sum(len(permits) for permits in self.inside)

    def start_worker(self) -> None:
        settings: dict[str, Any] = {"quotas": True, "gpu_memory_ratio": CAP, **HIGH_RATES}
        self.workers.append(throttle_for_tests(clock=self.clock, gpu=self.gpu, **settings))
        self.inside.append([])

    def sample(self) -> None:
        self.clock.advance(1.0)
        self.gpu.memory_used_bytes = min(self.full_gb, TOTAL_GB) * GB
        self.gpu.kv_used_ratio = min(self.full_gb / TOTAL_GB, 1.0)
        for worker in self.workers:
            Throttle.tick(worker)

    def request(self, worker: int, times: int = 1, priority: Priority = MID, *, states: bool = False) -> int:
        """Request repeatedly; returns the number of admissions."""
        stated = self.each_gb * GB if states else None
        verdicts = [
            self.workers[worker].try_admit(Demand(priority, memory_bytes=stated)) for _ in range(times)
        ]
        let_in = [verdict for verdict in verdicts if isinstance(verdict, Permit)]
        self.inside[worker] += let_in
        return len(let_in)

    def pass_on(self) -> None:
        """End a request of the first worker and begin one of the second; high, which always has capacity."""
        self.inside[0].pop().settle()
        assert self.request(1, priority=HIGH) == 1

    def seen(self, worker: int) -> QuotaView:
        seen = self.workers[worker].snapshot().quota
        assert seen is not None
        return seen


@settings(max_examples=25)
@given(workers=st.integers(1, 4), each_gb=st.integers(3, 40))
def test_between_samples_each_process_fills_the_whole_capacity(workers: int, each_gb: int) -> None:
    device = SharedDevice(workers, each_gb)
    capacity = int(CAP * TOTAL_GB / each_gb)
    for worker in range(workers):
        assert device.request(worker, capacity + 1, states=True) == capacity
    device.sample()
    for worker in range(workers):
        assert workers == 1 or device.request(worker) == 0


@pytest.mark.parametrize("workers", range(1, 5))
def test_under_even_load_each_learns_to_count_for_the_others_too(workers: int) -> None:
    device = SharedDevice(workers, each_gb=2)
    for _ in range(3):
        assert [device.request(worker) for worker in range(workers)] == [1] * workers
        device.sample()
    assert [device.seen(worker).slope for worker in range(workers)] == pytest.approx(
        [0.02 * workers] * workers
    )
    for worker in range(workers):
        device.request(worker, 50)
    assert CAP * TOTAL_GB - 2 * workers * workers < device.full_gb <= CAP * TOTAL_GB


@pytest.mark.parametrize("at_once", [True, False])
def test_late_process_counts_memory_of_others_as_weights(*, at_once: bool) -> None:
    device = SharedDevice(1 + at_once, each_gb=5)
    for _ in range(12):
        device.request(0)
        device.sample()
    if not at_once:
        device.start_worker()
        device.sample()
    assert [device.seen(worker).fill for worker in range(2)] == [pytest.approx(0.6), 0.0]
    assert device.seen(1).usable_bytes == 40 * GB
    for _ in range(10):
        device.request(1, 1, LOW)
        device.sample()
    assert device.full_gb == 80, "half of what was left, though low may fill half of the whole"
    while device.inside[0]:
        device.inside[0].pop().settle()
    device.sample()
    assert device.seen(1).usable_bytes == (100 - 20) * GB, "what its own hold by now stays unseen"


def shifted_load(**made: Any) -> SharedDevice:
    """Build a GPU on which half of the load of the first worker has moved to the second."""
    device = SharedDevice(2, each_gb=5, **made)
    for _ in range(6):
        device.request(0)
        device.request(1)
        device.sample()
    for _ in range(3):
        device.pass_on()
        device.sample()
    assert device.full_gb == 60
    return device


@pytest.mark.parametrize(("priority", "count"), [(LOW, 3), (MID, 4), (HIGH, 5)])
def test_process_without_work_admits_into_the_remaining_memory(priority: Priority, count: int) -> None:
    device = shifted_load()
    assert [device.seen(worker).basis for worker in range(2)] == [FillBasis.KEPT, FillBasis.DEVICE]
    assert device.seen(0).usable_bytes == 40 * GB
    assert device.request(0, 60, priority) == count
    assert device.request(1, 60, LOW) == 0
    device.sample()
    assert device.full_gb <= 92
    assert device.seen(0).basis is FillBasis.DEVICE
    assert [device.request(worker, 4) for worker in range(2)] == [0, 0]


def test_the_cache_of_an_engine_is_the_same_for_all() -> None:
    device = shifted_load(engines=1)
    device.start_worker()
    device.sample()
    assert [device.seen(worker).basis for worker in range(3)] == [FillBasis.CACHE] * 3
    assert [device.seen(worker).fill for worker in range(3)] == [0.6] * 3
    assert [device.request(worker, 4, LOW) for worker in range(3)] == [0, 0, 0]
