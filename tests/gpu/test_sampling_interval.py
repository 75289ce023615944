"""``SAMPLE_ADAPTIVE``: interval by load, never stale by its own length, awake at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from autoglm_throttle import GpuSample, Settings, TelemetryState, Throttle
from autoglm_throttle.testing import FakeGpu, ManualClock
from tests.admission.demands import admitted
from tests.gpu.throttled_service import Named, Service

PATIENCE_S = 10.0


class Paced:
    """A service whose sources are read when they are due, not sooner."""

    def __init__(
        self, sources: Sequence[FakeGpu] = (), clock: ManualClock | None = None, **settings: Any
    ) -> None:
        self.clock = clock or ManualClock()
        sources = sources or [FakeGpu(clock=self.clock)]
        self.gpu = sources[0]
        self.service = Service(sources, self.clock, **{"sample_adaptive": True, **settings})
        self.service.throttle.tick()

    @property
    def interval_s(self) -> float:
        return max(one.interval_s for one in self.service.throttle.snapshot().sources)

    def until_due(self) -> TelemetryState:
        """Return the state just before the next reading, then read."""
        samplers = self.service.throttle.control.monitor.samplers.values()
        due_s = min(sampler.schedule.due_s for sampler in samplers)
        self.clock.advance(max(0.0, due_s - self.clock()))
        state = self.service.throttle.control_state().telemetry
        for sampler in samplers:
            if sampler.schedule.due_s <= self.clock():
                sampler.tick()
        return state

    def idle(self) -> None:
        """Advance until the longest interval is reached."""
        for _ in range(200):
            self.until_due()
            if self.interval_s == 10.0:
                return
        raise AssertionError(f"it stays at {self.interval_s} s")


def test_idle_device_is_sampled_every_ten_seconds() -> None:
    paced = Paced()
    paced.gpu.utilization_pct = 5.0
    seen, began_s = [], paced.clock()
    while paced.clock() - began_s < 200.0:
        paced.until_due()
        if paced.interval_s not in seen:
            seen.append(paced.interval_s)
    assert seen == [1.0, 5.0, 10.0]


@pytest.mark.parametrize(
    ("utilization_pct", "interval_s"), [(29.0, 10.0), (31.0, 5.0), (69.0, 5.0), (71.0, 1.0), (100.0, 1.0)]
)
def test_the_load_decides(utilization_pct: float, interval_s: float) -> None:
    paced = Paced(policy="adaptive")
    paced.gpu.utilization_pct = utilization_pct
    for _ in range(150):
        paced.until_due()
    assert paced.interval_s == interval_s


def test_faster_at_once() -> None:
    paced = Paced()
    paced.idle()
    paced.gpu.utilization_pct = 50.0
    paced.until_due()
    assert paced.interval_s == 5.0
    paced.gpu.utilization_pct = 80.0
    paced.until_due()
    assert paced.interval_s == 1.0


def test_never_stale_by_its_own_slowness() -> None:
    paced = Paced()
    paced.idle()
    assert {paced.until_due() for _ in range(50)} == {TelemetryState.FRESH}
    for utilization_pct in (80.0, 5.0, 50.0, 5.0):
        paced.gpu.utilization_pct = utilization_pct
        assert {paced.until_due() for _ in range(40)} == {TelemetryState.FRESH}


def test_a_slow_rhythm_still_shows_a_hang() -> None:
    paced = Paced()
    paced.idle()
    paced.until_due()
    paced.gpu.hang()
    states = []
    for _ in range(40):
        paced.clock.advance(1.0)
        states.append(paced.service.throttle.control_state().telemetry)
    assert TelemetryState.STALE in states
    assert states.index(TelemetryState.STALE) <= 30


@pytest.mark.parametrize("error", ["cut", "lost", "stalled"])
def test_abnormal_device_is_sampled_often(error: str) -> None:
    paced = Paced()
    gpu = paced.gpu
    if error == "cut":
        gpu.utilization_pct = 93.0
    elif error == "lost":
        gpu.lose()
    else:
        gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 86.0, 70.0, 700.0
        paced.service.hang(2)
    for _ in range(100):
        paced.until_due()
    assert paced.interval_s == 1.0


def test_engine_is_sampled_with_the_devices() -> None:
    clock = ManualClock()
    engine = Named("vllm:h:1", clock, devices=0, engines=1)
    paced = Paced((FakeGpu(clock=clock), engine), clock)
    paced.idle()
    assert {paced.until_due() for _ in range(50)} == {TelemetryState.FRESH}
    assert [one.interval_s for one in paced.service.throttle.snapshot().sources] == [10.0, 10.0]
    engine.kv_used_ratio = 0.7
    for _ in paced.service.throttle.snapshot().sources:
        paced.until_due()
    assert paced.interval_s == 1.0


def test_many_in_flight_is_load_despite_idle_device() -> None:
    paced = Paced(policy="adaptive", inflight_start=4, inflight_max=4)
    paced.idle()
    permits = paced.service.hang(4)
    assert len(permits) == 4
    paced.until_due()
    assert paced.interval_s == 1.0


class Read(Named):
    """A GPU that signals each read."""

    def __init__(self, name: str, clock: ManualClock) -> None:
        super().__init__(name, clock)
        self.reads = threading.Semaphore(0)

    def read(self) -> Sequence[GpuSample]:
        self.reads.release()
        return super().read()


class SampleRecorder(Throttle):
    """A throttle that signals each observed reading."""

    listener: threading.Semaphore


@contextmanager
def dozing(sources: int) -> Iterator[tuple[SampleRecorder, list[Read], ManualClock]]:
    """Provide a throttle with threads, at the longest interval, after a long time without requests."""
    clock = ManualClock()
    gpus = [Read(f"gpu-{number}", clock) for number in range(sources)]
    throttle = SampleRecorder(Settings(sample_adaptive=True), gpu=gpus, clock=clock)
    throttle.listener = threading.Semaphore(0)
    throttle.control.after_sample = throttle.listener.release
    throttle.start()
    try:
        for _ in gpus:
            assert throttle.listener.acquire(timeout=PATIENCE_S)
        while throttle.snapshot().sources[0].interval_s < 10.0:
            clock.advance(10.0)
            for sampler in throttle.control.monitor.samplers.values():
                sampler.wake()
                assert throttle.listener.acquire(timeout=PATIENCE_S)
        for gpu in gpus:
            while gpu.reads.acquire(blocking=False):
                pass
        yield throttle, gpus, clock
    finally:
        throttle.stop()


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("looked_at", [False, True])
def test_the_first_request_after_idleness_wakes(sources: int, looked_at: bool) -> None:
    with dozing(sources) as (throttle, gpus, clock):
        assert not any(gpu.reads.acquire(timeout=0.1) for gpu in gpus), "it dozes"
        clock.advance(1.0)
        if looked_at:
            throttle.snapshot()  # as whoever scrapes our metrics does
        assert admitted(throttle, 1) == 1
        for gpu in gpus:
            assert gpu.reads.acquire(timeout=PATIENCE_S), "ten seconds of dozing were cut short"
            assert throttle.listener.acquire(timeout=PATIENCE_S)


@pytest.mark.parametrize("sources", [1, 2])
def test_only_the_first_request_wakes(sources: int) -> None:
    """Otherwise a few requests would cause reads at the highest rate."""
    with dozing(sources) as (throttle, gpus, clock):
        clock.advance(1.0)
        assert admitted(throttle, 1) == 1
        for gpu in gpus:
            assert gpu.reads.acquire(timeout=PATIENCE_S)
            assert throttle.listener.acquire(timeout=PATIENCE_S)
        for _ in range(4):
            clock.advance(0.5)
            assert admitted(throttle, 5) == 5
            assert not any(gpu.reads.acquire(timeout=0.05) for gpu in gpus)
