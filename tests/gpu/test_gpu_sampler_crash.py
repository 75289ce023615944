"""A crash is logged and survived; only a dead thread is restarted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from autoglm_throttle.gpu.interval import Schedule
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.types import GpuSample, ProviderMisconfigured
from tests.gpu.sampler_doubles import (
    PATIENCE_S,
    ROW,
    Hang,
    SampleRecorder,
    Source,
    StepClock,
    raising,
    sampler_threads,
)

CRASHES = [SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
"""Exceptions that ``except Exception`` does not catch. (``MemoryError`` is caught: it is a failed read.)"""


class StoppedError(Source):
    """A provider whose close can be awaited: it comes last in a crash."""

    def __init__(self, reading: Callable[[], Sequence[GpuSample]]) -> None:
        super().__init__(reading)
        self.stopped = threading.Semaphore(0)

    def close(self) -> None:
        super().close()
        self.stopped.release()

    def wait(self) -> None:
        assert self.stopped.acquire(timeout=PATIENCE_S), "it was not closed"


@pytest.fixture
def source() -> StoppedError:
    return StoppedError(raising(SystemExit("driver says goodbye")))


@pytest.fixture
def sampler(source: StoppedError, listener: SampleRecorder, clock: StepClock) -> Iterator[Sampler]:
    """Build a sampler with a manual clock, so that only the test ends the pause."""
    sampler = Sampler(source, listener.samples, listener.failure, interval_s=0.01, clock=clock)
    yield sampler
    sampler.stop(PATIENCE_S)


@pytest.mark.parametrize("error", CRASHES, ids=lambda error: type(error).__name__)
def test_crash_is_counted_logged_once_and_no_misconfiguration(
    sampler: Sampler, source: StoppedError, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    source.reading = raising(error)
    sampler.start()
    source.wait()
    assert (sampler.status.crashes, sampler.status.failures, sampler.status.misconfigured) == (1, 0, None)
    assert sampler.status.last_error == f"{type(error).__name__}: {error}"
    assert (sampler.is_running, sampler.has_crashed, sampler.status.reading_since_s) == (True, True, None)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    report = f"crashed with {sampler.status.last_error}; it starts again in 1 s"
    assert record.getMessage() == f"GPU telemetry: source: the sampler {report}"
    assert record.exc_info, "the trace is what finds a fault of ours"
    assert sampler.view(0.0).state == "crashed"


def test_a_fault_of_our_own_is_a_crash_like_any_other(
    sampler: Sampler, source: StoppedError, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.reading = lambda: [ROW]
    monkeypatch.setattr(Schedule, "begin", raising(AttributeError("x")))
    sampler.start()
    source.wait()
    assert (sampler.status.crashes, sampler.status.misconfigured) == (1, None)
    assert "TypeError" in str(sampler.status.last_error), "it takes no arguments"


def test_after_its_pause_it_reads_on_without_any_request(
    sampler: Sampler, source: StoppedError, listener: SampleRecorder, clock: StepClock
) -> None:
    sampler.start()
    source.wait()
    (thread,) = sampler_threads()
    source.reading = lambda: [ROW]
    clock.now += 1.0
    sampler.wake()
    listener.wait()
    assert listener.rows
    assert source.calls[:3] == ["read", "close", "read"], "what crashed is opened anew"
    assert (sampler_threads(), sampler.has_crashed) == ([thread], False)


def test_stop_ends_a_pause_and_a_start_after_it_reads_at_once(
    sampler: Sampler, source: StoppedError, listener: SampleRecorder
) -> None:
    sampler.start()
    source.wait()
    (thread,) = sampler_threads()
    sampler.stop(PATIENCE_S)
    assert not thread.is_alive()
    source.reading = lambda: [ROW]
    sampler.start()
    listener.wait()


def test_a_closing_that_crashes_too_is_no_second_crash(
    sampler: Sampler,
    source: StoppedError,
    listener: SampleRecorder,
    clock: StepClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        closed = threading.Semaphore(0)

        def close() -> None:
            closed.release()
            raise SystemExit

        patch.setattr(source, "close", close)
        sampler.start()
        assert closed.acquire(timeout=PATIENCE_S)
        source.reading = lambda: [ROW]
        clock.now += 1.0
        sampler.wake()
        listener.wait()
    assert sampler.status.crashes == 1


# A thread that is missing.


def test_none_is_started_beside_one_that_pauses_or_closes(
    sampler: Sampler, source: StoppedError, clock: StepClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go = threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        go.wait(PATIENCE_S)

    monkeypatch.setattr(source, "close", close)
    sampler.start()
    try:
        assert closing.wait(PATIENCE_S)
        sampler.restart_if_dead(clock.now + 1000.0)
        sampler.start()
        assert len(sampler_threads()) == 1
    finally:
        go.set()


def test_misconfigured_sampler_is_not_restarted(
    sampler: Sampler, source: StoppedError, clock: StepClock
) -> None:
    source.reading = raising(ProviderMisconfigured("install it"))
    sampler.start()
    for thread in sampler_threads():
        thread.join(PATIENCE_S)
    sampler.restart_if_dead(clock.now + 1000.0)
    assert not sampler_threads()
    assert sampler.is_running, "else every request would start the thread again"


def test_no_thread_to_be_had_is_tried_again_later(
    sampler: Sampler,
    source: StoppedError,
    listener: SampleRecorder,
    clock: StepClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rejected(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source.reading = lambda: [ROW]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", rejected)
        sampler.start()
        assert (sampler.is_running, sampler.has_crashed) == (False, True)
        assert sampler.status.last_error == "RuntimeError: can't start new thread"
        assert (sampler.status.failures, sampler.status.crashes) == (1, 0)
    sampler.restart_if_dead(clock.now + 0.999)
    assert not sampler_threads()
    clock.now += 1.0
    sampler.restart_if_dead(clock.now)
    listener.wait()
    assert (sampler.is_running, sampler.has_crashed) == (True, False)


def test_a_hung_driver_does_not_silence_the_engine(listener: SampleRecorder) -> None:
    hang = Hang()
    driver, engine = Source(hang), Source()
    driver.name, engine.name = "nvml", "vllm:127.0.0.1:8000"
    deaf = SampleRecorder()
    samplers = [
        Sampler(driver, deaf.samples, deaf.failure, interval_s=0.01),
        Sampler(engine, listener.samples, listener.failure, interval_s=0.01),
    ]
    try:
        for one in samplers:
            one.start()
        assert driver.entered.acquire(timeout=PATIENCE_S)
        for _ in range(5):
            listener.wait()
            for one in samplers:
                one.start()
                one.restart_if_dead(1e9)
        names = sorted(thread.name for thread in sampler_threads())
        assert names == ["autoglm-throttle-gpu-nvml", "autoglm-throttle-gpu-vllm:127.0.0.1:8000"]
        assert (driver.calls, deaf.rows, samplers[0].status.last_read_s) == (["read"], [], None)
        assert samplers[0].status.reading_since_s is not None
        assert samplers[1].status.last_read_s is not None
    finally:
        for one in samplers:
            one.stop(0.0)
        hang.over.set()
        for thread in sampler_threads():
            thread.join(PATIENCE_S)


def test_a_pace_from_another_thread_ends_a_long_wait(listener: SampleRecorder) -> None:
    sampler = Sampler(Source(), listener.samples, interval_s=3600.0)
    try:
        sampler.start()
        listener.wait()
        sampler.set_interval(0.01)
        listener.wait()
        listener.wait()
    finally:
        sampler.stop(PATIENCE_S)


def test_a_pace_during_a_read_counts_from_its_start(listener: SampleRecorder, clock: StepClock) -> None:
    def slow() -> Sequence[GpuSample]:
        paced.set_interval(0.5)  # as another thread may, in the middle
        clock.now += 0.25
        return [ROW]

    paced = Sampler(Source(slow), listener.samples, interval_s=10.0, clock=clock)
    paced.tick()
    assert paced.schedule.due_s == clock.now + 0.25


def test_requests_never_wait_for_a_read(listener: SampleRecorder) -> None:
    hang = Hang()
    source = Source(hang)
    sampler = Sampler(source, listener.samples, interval_s=1.0)
    sampler.start()
    try:
        assert source.entered.acquire(timeout=PATIENCE_S)
        done = threading.Event()

        def request() -> None:
            for _ in range(100):
                sampler.restart_if_dead(1e9)
                sampler.set_interval(2.0)
                sampler.set_interval(1.0)
                sampler.wake()
                sampler.view(1e9)
            done.set()

        threading.Thread(target=request, daemon=True).start()
        assert done.wait(PATIENCE_S)
        assert source.calls == ["read"]
    finally:
        sampler.stop(0.0)
        hang.over.set()
        for thread in sampler_threads():
            thread.join(PATIENCE_S)
