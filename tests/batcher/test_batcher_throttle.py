"""The batcher beside a throttle: GPU telemetry bounds its size, and its metrics are exported."""

from __future__ import annotations

import asyncio
import gc

import pytest

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle
from autoglm_throttle.observe import prometheus
from autoglm_throttle.testing import FakeGpu
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from tests.batcher.engine import Engine, Make, Run

UNDERFED = {"utilization_pct": 99.0, "power_w": 150.0, "power_limit_w": 700.0, "sm_active_ratio": 0.1}
"""Readings of a device that is busy by its utilization alone."""


@pytest.mark.parametrize(
    ("memory_ratio", "device", "grows"),
    [
        (0.5, {}, 1.05),
        (0.9, {}, 1.0),  # near the target of 0.92
        (0.95, {}, 0.7),
        (0.5, UNDERFED, 1.1),
    ],
)
def test_telemetry_bounds_the_growth(
    loop: VirtualLoop, run: Run, make: Make, memory_ratio: float, device: dict[str, float], grows: float
) -> None:
    gpu = FakeGpu(clock=loop.clock)
    gpu.memory_used_bytes = int(memory_ratio * 80e9)
    gpu.memory_total_bytes = int(80e9)
    for name, value in device.items():
        setattr(gpu, name, value)
    throttle = Throttle(Settings(), gpu=gpu, sampling="manual", clock=loop.clock)
    for _ in range(5):
        loop.clock.advance(1.0)
        permit = throttle.try_admit(Demand(Priority.MID))  # a verdict needs progress
        assert isinstance(permit, Permit)
        permit.settle()
        throttle.tick()
    batcher = make(Engine(), max_cost=1000.0, throttle=throttle)

    async def main() -> float:
        batcher._size.target, batcher._size._has_missed, batcher._size.p95_s = 100.0, True, 0.1
        for _ in range(20):
            await asyncio.gather(*(batcher.submit(0) for _ in range(int(batcher.view().target))))
            if batcher.view().target != 100.0:
                break
        return batcher.view().target

    assert run(main()) == pytest.approx(100.0 * grows)


def test_throttle_exports_its_batchers(run: Run, make: Make) -> None:
    throttle = Throttle(Settings(gpu="none"), sampling="manual")
    batcher = make(Engine(), throttle=throttle, name="embed")
    with pytest.raises(ValueError, match="a batcher of the name 'embed' already"):
        make(Engine(), throttle=throttle, name="embed")
    run(batcher.submit(1))
    assert throttle.snapshot().batchers == (batcher.view(),)
    values = {metric.name: metric.samples for metric in prometheus.SnapshotCollector(throttle).collect()}
    (items,) = values["autoglm_throttle_batcher_items"]
    assert (items.labels, items.value) == ({"batcher": "embed"}, 1.0)
    del batcher
    gc.collect()
    assert throttle.snapshot().batchers == ()
    make(Engine(), throttle=throttle, name="embed")
