"""A crash of the sampler thread: requests continue, and it reads again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from autoglm_throttle import GpuSample, Settings, TelemetryState, Throttle
from autoglm_throttle.gpu.sampler import THREAD
from autoglm_throttle.testing import FakeGpu, ManualClock
from tests.admission.demands import admitted

PATIENCE_S = 60.0


class Crashing(FakeGpu):
    """A provider that ends the reading thread."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.crashes_with: BaseException | None = None
        self.reads = threading.Semaphore(0)

    def read(self) -> Sequence[GpuSample]:
        self.reads.release()
        if self.crashes_with is not None:
            raise self.crashes_with
        return super().read()


def eventually(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not what():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.005)
    return True


def readers() -> int:
    return sum(thread.name.startswith(THREAD) for thread in threading.enumerate())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_requests_bring_a_crashed_sampler_back(error: BaseException) -> None:
    clock = ManualClock()
    gpu = Crashing(clock)
    before = readers()
    throttle = Throttle(Settings(policy="tiers"), gpu=gpu, clock=clock)
    try:
        throttle.start()
        assert eventually(lambda: throttle.control_state().telemetry is TelemetryState.FRESH)
        gpu.crashes_with = error
        (sampler,) = throttle.control.monitor.samplers.values()
        clock.advance(1.0)
        sampler.wake()
        assert eventually(lambda: throttle.snapshot().sources[0].crashes == 1)
        assert admitted(throttle, 20) == 20
        gpu.crashes_with = None
        clock.advance(3.5)
        assert throttle.control_state().telemetry is TelemetryState.STALE
        sampler.wake()
        assert admitted(throttle, 5) == 5
        assert eventually(lambda: throttle.control_state().telemetry is TelemetryState.FRESH)
        assert readers() - before == 1
        (source,) = throttle.snapshot().sources
        assert (source.crashes, source.state) == (1, "reading")
        assert type(error).__name__ in source.last_error
    finally:
        throttle.stop()
    assert eventually(lambda: readers() == before)


def test_repeated_crashes_lengthen_the_restart_delay() -> None:
    clock = ManualClock()
    gpu = Crashing(clock)
    gpu.crashes_with = SystemExit(1)
    throttle = Throttle(Settings(), gpu=gpu, clock=clock)
    try:
        throttle.start()
        (sampler,) = throttle.control.monitor.samplers.values()
        for number, pause_s in enumerate((1.0, 2.0, 4.0, 8.0), start=1):
            assert eventually(lambda number=number: throttle.snapshot().sources[0].crashes == number)  # type: ignore[misc]
            clock.advance(pause_s - 0.1)
            sampler.wake()
            assert admitted(throttle, 3) == 3
            assert throttle.snapshot().sources[0].crashes == number
            clock.advance(0.2)
            sampler.wake()
        assert readers() <= 2
    finally:
        throttle.stop()


def test_a_crash_of_one_source_is_not_one_of_the_other() -> None:
    clock = ManualClock()
    crashing, well = Crashing(clock), FakeGpu(0, engines=1, clock=clock)
    crashing.name, well.name = "nvml", "vllm:h:1"
    crashing.crashes_with = SystemExit(1)
    throttle = Throttle(Settings(), gpu=(crashing, well), clock=clock)
    try:
        throttle.start()
        assert eventually(lambda: throttle.snapshot().sources[0].crashes == 1)
        assert eventually(lambda: throttle.control_state().telemetry is TelemetryState.FRESH)
        assert throttle.snapshot().sources[1].crashes == 0
    finally:
        throttle.stop()
