"""A thread that crashed is noticed, told of, and started again; and only then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.sampler import THREAD, Sampler
from autoglm_throttle.gpu.schedule import Schedule
from autoglm_throttle.model import GpuSample, ProviderMisconfigured
from tests.gpu.doubles import PATIENCE_S, ROW, Hands, Hang, Heard, Source, raising

CRASHES = [SystemExit(1), KeyboardInterrupt(), GeneratorExit()]
"""What no ``except Exception`` stops. (``MemoryError`` is stopped: it is a failed read.)"""


@pytest.fixture
def source() -> Source:
    return Source(raising(SystemExit("driver says goodbye")))


@pytest.fixture
def sampler(source: Source, heard: Heard, hands: Hands) -> Iterator[Sampler]:
    """One whose clock stands still: only the test lets the pause pass."""
    sampler = Sampler(source, heard.samples, heard.failure, interval_s=0.01, clock=hands)
    yield sampler
    sampler.stop(PATIENCE_S)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


def run_until_it_ends(sampler: Sampler, begin: Callable[[], object]) -> None:
    begin()
    for thread in threads():
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def crashes(sampler: Sampler) -> int:
    """A function, for it changes between two looks."""
    return sampler.crashes


@pytest.mark.parametrize("error", CRASHES, ids=lambda error: type(error).__name__)
def test_a_crash_is_counted_told_in_one_line_and_no_misconfiguration(
    sampler: Sampler, source: Source, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    source.reading = raising(error)
    run_until_it_ends(sampler, sampler.start)
    assert (sampler.crashes, sampler.failures, sampler.misconfigured) == (1, 0, None)
    assert sampler.last_error == f"{type(error).__name__}: {error}"
    assert (sampler.running, sampler.reading_since_s) == (True, None)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    told = f"crashed with {sampler.last_error}; it starts again in 1 s"
    assert record.getMessage() == f"GPU telemetry: source: the sampler's thread {told}"
    assert record.exc_info, "the trace is what finds a fault of ours"
    assert repr(sampler) == "Sampler(source, crashed, failures=0, overruns=0)"


def test_a_fault_of_our_own_is_a_crash_like_any_other(
    sampler: Sampler, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.reading = lambda: [ROW]
    monkeypatch.setattr(sampler, "_schedule", None)
    run_until_it_ends(sampler, sampler.start)
    assert (sampler.crashes, sampler.misconfigured) == (1, None)
    assert "AttributeError" in str(sampler.last_error)
    monkeypatch.undo()


def test_it_is_revived_after_its_pause_and_reads_on(
    sampler: Sampler, source: Source, heard: Heard, hands: Hands
) -> None:
    run_until_it_ends(sampler, sampler.start)
    assert not sampler.revive(hands.now + 0.999)
    source.reading = lambda: [ROW]
    hands.now += 1.0
    assert sampler.revive(hands.now)
    heard.wait()
    assert heard.rows
    assert not sampler.revive(hands.now + 1000.0), "it lives"
    assert source.calls[:3] == ["read", "close", "read"], "what crashed is opened anew, on the thread"
    assert source.threads == {"autoglm-throttle-gpu-source"}
    assert len(threads()) == 1


def test_again_and_again_backs_off_to_a_minute(sampler: Sampler, source: Source, hands: Hands) -> None:
    run_until_it_ends(sampler, sampler.start)
    for count, pause_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        assert crashes(sampler) == count
        assert not sampler.revive(hands.now + pause_s - 0.001)
        hands.now += pause_s
        run_until_it_ends(sampler, lambda: sampler.revive(hands.now))


def test_a_crowd_of_requests_starts_one_thread(sampler: Sampler, source: Source, hands: Hands) -> None:
    run_until_it_ends(sampler, sampler.start)
    hang = Hang()
    source.reading = hang
    hands.now += 1.0
    ready = threading.Barrier(8)
    revived: list[bool] = []

    def ask() -> None:
        ready.wait(PATIENCE_S)
        revived.extend(sampler.revive(hands.now) for _ in range(50))

    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(PATIENCE_S)
    try:
        assert revived.count(True) == 1
        assert len(threads()) == 1
    finally:
        hang.over.set()


class Meanwhile:
    """A lock that is had only after something else has happened."""

    def __init__(self, lock: Any, happens: Callable[[], object]) -> None:
        self.lock = lock
        self.happening = [happens]

    def __enter__(self) -> None:
        while self.happening:
            self.happening.pop()()
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("happening", ["stop", "start"])
def test_what_another_request_did_first_counts(
    sampler: Sampler, source: Source, hands: Hands, monkeypatch: pytest.MonkeyPatch, happening: str
) -> None:
    run_until_it_ends(sampler, sampler.start)
    hang = Hang()
    source.reading = hang
    hands.now += 1.0
    monkeypatch.setattr(sampler, "_lock", Meanwhile(sampler._lock, getattr(sampler, happening)))
    try:
        assert not sampler.revive(hands.now)
        assert len(threads()) == {"stop": 0, "start": 1}[happening]
    finally:
        hang.over.set()


@pytest.mark.parametrize(
    ("plan", "reading"),
    [
        ("succeeded", lambda: [ROW]),
        ("failed", raising(OSError("x"))),
        ("absent", raising(NoSource("nothing"))),
    ],
)
def test_no_pace_of_another_thread_is_lost_while_the_next_read_is_planned(
    sampler: Sampler,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    plan: str,
    reading: Callable[[], Sequence[GpuSample]],
) -> None:
    planned = getattr(Schedule, plan)
    free: list[bool] = []

    def watched(*arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as another:
            free.append(another.submit(sampler._lock.acquire, blocking=False).result(PATIENCE_S))
        return planned(*arguments)

    monkeypatch.setattr(Schedule, plan, watched)
    source.reading = reading
    sampler.tick()
    assert free == [False]


def test_none_is_started_beside_a_hung_read_or_a_hung_closing(
    sampler: Sampler, source: Source, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go = threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        go.wait(PATIENCE_S)

    monkeypatch.setattr(source, "close", close)
    sampler.start()
    try:
        assert closing.wait(PATIENCE_S)
        hands.now += 1000.0
        assert not sampler.revive(hands.now)
        assert len(threads()) == 1
    finally:
        go.set()


def test_a_closing_that_crashes_too_is_no_second_crash(
    sampler: Sampler, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "close", raising(SystemExit()))
    run_until_it_ends(sampler, sampler.start)
    monkeypatch.undo()
    assert sampler.crashes == 1


@pytest.mark.parametrize("cause", ["stopped", "misconfigured"])
def test_what_ended_for_good_is_not_revived(
    sampler: Sampler, source: Source, hands: Hands, cause: str
) -> None:
    if cause == "misconfigured":
        source.reading = raising(ProviderMisconfigured("install it"))
    run_until_it_ends(sampler, sampler.start)
    if cause == "stopped":
        sampler.stop()
    assert not sampler.revive(hands.now + 1000.0)
    assert source.calls.count("read") == 1


def test_an_explicit_start_does_not_wait_for_the_pause(
    sampler: Sampler, source: Source, heard: Heard
) -> None:
    run_until_it_ends(sampler, sampler.start)
    source.reading = lambda: [ROW]
    sampler.start()
    heard.wait()


def test_no_thread_to_be_had_is_tried_again_later(
    sampler: Sampler, source: Source, heard: Heard, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    run_until_it_ends(sampler, sampler.start)
    source.reading = lambda: [ROW]
    hands.now += 1.0
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert not sampler.revive(hands.now)
        assert sampler.last_error == "RuntimeError: can't start new thread"
    assert not sampler.revive(hands.now + 1.999)
    assert sampler.revive(hands.now + 2.0)
    heard.wait()


def test_a_child_of_a_crashed_sampler_has_nothing_to_revive(
    sampler: Sampler, source: Source, heard: Heard, hands: Hands
) -> None:
    run_until_it_ends(sampler, sampler.start)
    sampler.forget()
    assert not sampler.revive(hands.now + 1000.0)
    source.reading = lambda: [ROW]
    sampler.start()
    heard.wait()


def test_a_hung_driver_does_not_silence_the_engine(heard: Heard) -> None:
    hang = Hang()
    driver, engine = Source(hang), Source()
    driver.name, engine.name = "nvml", "vllm:127.0.0.1:8000"
    deaf = Heard()
    samplers = [
        Sampler(driver, deaf.samples, deaf.failure, interval_s=0.01),
        Sampler(engine, heard.samples, heard.failure, interval_s=0.01),
    ]
    try:
        for one in samplers:
            one.start()
        assert driver.entered.acquire(timeout=PATIENCE_S)
        for _ in range(5):
            heard.wait()
            for one in samplers:
                one.start()
                assert not one.revive(1e9)
        names = sorted(thread.name for thread in threads())
        assert names == ["autoglm-throttle-gpu-nvml", "autoglm-throttle-gpu-vllm:127.0.0.1:8000"]
        assert (driver.calls, deaf.rows, samplers[0].last_read_s) == (["read"], [], None)
        assert samplers[0].reading_since_s is not None
        assert samplers[1].last_read_s is not None
    finally:
        for one in samplers:
            one.stop(0.0)
        hang.over.set()
        for thread in threads():
            thread.join(PATIENCE_S)


def test_a_pace_from_another_thread_ends_a_long_wait(heard: Heard) -> None:
    sampler = Sampler(Source(), heard.samples, interval_s=3600.0)
    try:
        sampler.start()
        heard.wait()
        sampler.pace(0.01)
        heard.wait()
        heard.wait()
    finally:
        sampler.stop(PATIENCE_S)


def test_a_pace_during_a_read_counts_from_its_start(heard: Heard, hands: Hands) -> None:
    def slow() -> Sequence[GpuSample]:
        paced.pace(0.5)  # as another thread may, in the middle
        hands.now += 0.25
        return [ROW]

    paced = Sampler(Source(slow), heard.samples, interval_s=10.0, clock=hands)
    paced.tick()
    assert paced._next.due_s == hands.now + 0.25


def test_requests_never_wait_for_a_read(heard: Heard) -> None:
    hang = Hang()
    source = Source(hang)
    sampler = Sampler(source, heard.samples, interval_s=1.0)
    sampler.start()
    try:
        assert source.entered.acquire(timeout=PATIENCE_S)
        assert sampler._lock.acquire(blocking=False), "what a request may wait for is free"
        sampler._lock.release()
        done = threading.Event()

        def ask() -> None:
            for _ in range(100):
                sampler.revive(1e9)
                sampler.pace(2.0)
                sampler.pace(1.0)
                sampler.wake()
                repr(sampler)
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(PATIENCE_S)
        assert source.calls == ["read"]
    finally:
        sampler.stop(0.0)
        hang.over.set()
        for thread in threads():
            thread.join(PATIENCE_S)
