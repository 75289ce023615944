"""The background thread: start, stop, wake, crashes, hung steps."""

from __future__ import annotations

import gc
import math
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoglm_throttle._runtime import backoff_s
from autoglm_throttle._runtime import worker as worker_module
from autoglm_throttle._runtime.worker import WAIT_MAX_S, Worker
from autoglm_throttle.testing import ManualClock

PATIENCE_S = 60.0
"""Seconds until a thread counts as dead; a test that passes never waits so long."""

NEVER = math.inf


class Steps:
    """Counts the steps of a worker and runs the function that a test sets."""

    def __init__(self) -> None:
        self.run: Callable[[], float | None] = lambda: NEVER
        self.threads: list[threading.Thread] = []
        self.began = threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.crashed = threading.Semaphore(0)
        self.ends = 0

    def __call__(self) -> float | None:
        self.threads.append(threading.current_thread())
        self.began.release()
        return self.run()

    def on_crash(self, error: BaseException) -> None:
        self.errors.append(error)
        self.crashed.release()

    def on_stop(self) -> None:
        self.ends += 1

    def wait(self) -> None:
        assert self.began.acquire(timeout=PATIENCE_S), "no step ran"

    def wait_for_crash(self) -> None:
        assert self.crashed.acquire(timeout=PATIENCE_S), "no step crashed"


class Hang:
    """A step that returns when the test lets it."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self) -> float:
        assert self.over.wait(PATIENCE_S)
        return NEVER


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def worker(steps: Steps, clock: ManualClock) -> Iterator[Worker]:
    worker = Worker("a worker", steps, on_stop=steps.on_stop, on_crash=steps.on_crash, clock=clock)
    yield worker
    worker.stop(PATIENCE_S)


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def raising(error: BaseException) -> Callable[[], float]:
    def step() -> float:
        raise error

    return step


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", rejected)


def test_worker_runs_from_start_to_stop(worker: Worker, steps: Steps) -> None:
    assert (worker.is_alive, worker.is_stopping) == (False, True)
    worker.start()
    steps.wait()
    (thread,) = steps.threads
    assert (thread.name, thread.daemon, worker.is_current) == ("a worker", True, False)
    assert worker.is_alive
    worker.stop(PATIENCE_S)
    assert (thread.is_alive(), worker.is_alive, worker.is_stopping) == (False, False, True)
    assert steps.ends == 1


def test_second_start_keeps_the_thread(worker: Worker, steps: Steps) -> None:
    worker.start()
    worker.start()
    steps.wait()
    worker.wake()
    steps.wait()
    assert len(set(steps.threads)) == 1


def test_start_after_stop_is_a_new_thread(worker: Worker, steps: Steps) -> None:
    for _ in range(2):
        worker.start()
        steps.wait()
        worker.stop(PATIENCE_S)
    assert len(set(steps.threads)) == 2


def test_wake_ends_a_long_wait(worker: Worker, steps: Steps) -> None:
    worker.start()
    steps.wait()
    worker.wake()
    steps.wait()


def test_step_is_repeated_after_its_pause(worker: Worker, steps: Steps) -> None:
    steps.run = lambda: 0.0 if len(steps.threads) < 5 else NEVER
    worker.start()
    for _ in range(5):
        steps.wait()


def test_step_that_returns_none_ends_the_thread(worker: Worker, steps: Steps) -> None:
    steps.run = lambda: None
    worker.start()
    steps.wait()
    join(steps.threads[0])
    assert (worker.is_alive, worker.is_stopping, steps.ends) == (False, True, 1)
    worker.restart_if_dead(NEVER)
    assert not worker.is_alive
    worker.start()
    steps.wait()


def test_start_during_the_last_step_is_not_lost(worker: Worker, steps: Steps) -> None:
    def last() -> None:
        steps.run = lambda: NEVER
        worker.start()

    steps.run = last
    worker.start()
    steps.wait()
    steps.wait()
    assert worker.is_alive
    assert len(set(steps.threads)) == 1


class Interrupted(Worker):
    """A worker that is started at the moment at which its thread has decided to end."""

    stopping = True
    reads_by_thread = 0

    @property
    def is_stopping(self) -> bool:
        stopping = self.stopping
        if stopping and self.is_current:
            self.reads_by_thread += 1
            if self.reads_by_thread == 2:
                self.stopping = False
        return stopping

    @is_stopping.setter
    def is_stopping(self, stopping: bool) -> None:
        self.stopping = stopping


def test_ending_thread_ends_although_it_is_started(steps: Steps) -> None:
    worker = Interrupted("interrupted", steps)
    worker.start()
    steps.wait()
    (thread,) = steps.threads
    worker.stop(0.0)
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it would run beside the one that the start launches"
    worker.start()
    steps.wait()
    assert len(steps.threads) == 2
    worker.stop()


def test_worker_may_stop_itself(worker: Worker, steps: Steps) -> None:
    current: list[bool] = []

    def stop() -> float:
        current.append(worker.is_current)
        worker.stop(PATIENCE_S)
        return NEVER

    steps.run = stop
    worker.start()
    steps.wait()
    join(steps.threads[0])
    assert (current, steps.ends) == ([True], 1)


def test_stop_leaves_a_hung_step_behind(worker: Worker, steps: Steps) -> None:
    hang = steps.run = Hang()
    worker.start()
    steps.wait()
    worker.stop(0.0)
    assert (worker.is_alive, worker.is_stopping) == (True, True)
    hang.over.set()
    join(steps.threads[0])
    assert (len(steps.threads), steps.ends) == (1, 1)


def test_start_after_a_hung_step_continues_its_thread(worker: Worker, steps: Steps) -> None:
    hang = steps.run = Hang()
    worker.start()
    steps.wait()
    worker.stop(0.0)
    worker.start()
    steps.run = lambda: NEVER
    hang.over.set()
    worker.wake()
    steps.wait()
    assert len(set(steps.threads)) == 1
    assert steps.ends == 0


def test_start_while_the_thread_ends_keeps_it(steps: Steps) -> None:
    end_way, go = threading.Event(), threading.Event()

    def on_stop() -> None:
        end_way.set()
        assert go.wait(PATIENCE_S)

    worker = Worker("a worker", steps, on_stop=on_stop)
    try:
        worker.start()
        steps.wait()
        worker.stop(0.0)
        assert end_way.wait(PATIENCE_S)
        worker.start()
        go.set()
        steps.wait()
        assert len(set(steps.threads)) == 1
    finally:
        go.set()
        worker.stop(PATIENCE_S)


def test_start_beside_a_dying_thread_always_runs(worker: Worker, steps: Steps) -> None:
    for _ in range(200):
        worker.start()
        steps.wait()
        worker.stop(0.0)
    worker.start()
    worker.wake()
    steps.wait()
    assert worker.is_alive


def test_concurrent_starts_are_one_thread(worker: Worker, steps: Steps) -> None:
    ready = threading.Barrier(8)

    def start() -> None:
        ready.wait(PATIENCE_S)
        worker.start()
        worker.restart_if_dead(NEVER)

    starters = [threading.Thread(target=start) for _ in range(8)]
    for one in starters:
        one.start()
    for one in starters:
        join(one)
    steps.wait()
    worker.wake()
    steps.wait()
    assert len(set(steps.threads)) == 1


def test_failing_end_still_ends_the_thread(steps: Steps) -> None:
    worker = Worker("a worker", steps, on_stop=raising(OSError("x")))
    worker.start()
    steps.wait()
    worker.stop(PATIENCE_S)
    assert not worker.is_alive


@pytest.mark.parametrize("error", [OSError("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_crash_is_reported_and_the_thread_goes_on(
    worker: Worker, steps: Steps, clock: ManualClock, error: BaseException
) -> None:
    steps.run = raising(error)
    worker.start()
    steps.wait()
    steps.wait_for_crash()
    assert (steps.errors, worker.has_crashed, worker.is_alive) == ([error], True, True)
    assert worker.restart_due_s == clock() + 1.0
    steps.run = lambda: NEVER
    clock.advance(1.0)
    worker.wake()
    steps.wait()
    assert (worker.has_crashed, len(set(steps.threads))) == (False, 1)


def test_wake_does_not_shorten_the_pause_of_a_crash(worker: Worker, steps: Steps, clock: ManualClock) -> None:
    steps.run = raising(OSError("x"))
    worker.start()
    steps.wait_for_crash()
    clock.advance(0.9)
    for _ in range(100):
        worker.wake()
    clock.advance(0.2)
    worker.wake()
    steps.wait_for_crash()
    assert len(steps.threads) == 2


def test_stop_ends_the_pause_of_a_crash(worker: Worker, steps: Steps) -> None:
    steps.run = raising(OSError("x"))
    worker.start()
    steps.wait_for_crash()
    worker.stop(PATIENCE_S)
    assert (steps.threads[0].is_alive(), worker.has_crashed) == (False, False)
    steps.run = lambda: NEVER
    steps.began = threading.Semaphore(0)
    worker.start()
    steps.wait()


def test_failing_crash_report_does_not_end_the_thread(steps: Steps, clock: ManualClock) -> None:
    def on_crash(error: BaseException) -> None:
        steps.on_crash(error)
        raise SystemExit

    worker = Worker("a worker", steps, on_crash=on_crash, clock=clock)
    try:
        steps.run = raising(OSError("x"))
        worker.start()
        steps.wait_for_crash()
        clock.advance(1.0)
        worker.wake()
        steps.wait_for_crash()
    finally:
        worker.stop(PATIENCE_S)


class Waits:
    """A queue without wake-ups; waiting for one advances the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.timeouts: list[float] = []

    def put(self, item: None) -> None: ...

    def get(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self.clock.advance(timeout)
        raise queue.Empty

    def get_nowait(self) -> None:
        raise queue.Empty


@pytest.fixture
def waits(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits(clock)

    class Queue:
        Empty = queue.Empty

        @staticmethod
        def SimpleQueue() -> Waits:
            return waits

    monkeypatch.setattr(worker_module, "queue", Queue)
    return waits


def run_until_none(step: Callable[[], float | None], clock: ManualClock) -> None:
    """Run a worker until its step returns None."""
    ended = threading.Event()
    worker = Worker("a worker", step, on_stop=ended.set, clock=clock)
    worker.start()
    assert ended.wait(PATIENCE_S)
    worker.stop(PATIENCE_S)


def script(*outcomes: float | BaseException | None) -> Callable[[], float | None]:
    pending = iter(outcomes)

    def step() -> float | None:
        outcome = next(pending)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return step


def test_crashes_in_a_row_back_off_to_a_minute(clock: ManualClock, waits: Waits) -> None:
    run_until_none(script(*[OSError("x")] * 9, None), clock)
    assert waits.timeouts == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert waits.timeouts == [backoff_s(nth) for nth in range(1, 10)]


@pytest.mark.parametrize(("healthy_s", "pause_s"), [(59.9, 4.0), (60.0, 1.0)])
def test_healthy_minute_resets_the_back_off(
    clock: ManualClock, waits: Waits, healthy_s: float, pause_s: float
) -> None:
    run_until_none(script(OSError("x"), OSError("x"), healthy_s, OSError("x"), None), clock)
    assert waits.timeouts == [1.0, 2.0, healthy_s, pause_s]


def test_endless_wait_is_divided(clock: ManualClock, waits: Waits) -> None:
    run_until_none(script(NEVER, 0.0, 1e12, None), clock)
    assert waits.timeouts == [WAIT_MAX_S, WAIT_MAX_S]


def test_system_without_threads_is_a_crash(
    worker: Worker, steps: Steps, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_threads(patch)
        worker.start()
        assert (worker.is_alive, worker.is_stopping, worker.has_crashed) == (False, False, True)
        assert [str(error) for error in steps.errors] == ["can't start new thread"]
        worker.start()
        worker.restart_if_dead(clock())
        assert len(steps.errors) == 1, "one attempt within the pause"
        clock.advance(1.0)
        worker.restart_if_dead(clock())
        assert len(steps.errors) == 2
        assert worker.restart_due_s == clock() + 2.0
    worker.restart_if_dead(clock() + 1.9)
    assert not worker.is_alive
    clock.advance(2.0)
    worker.restart_if_dead(clock())
    steps.wait()
    assert not worker.has_crashed


def test_stop_allows_a_new_attempt_at_once(
    worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_threads(patch)
        worker.start()
    worker.stop()
    worker.restart_if_dead(NEVER)
    assert not worker.is_alive, "none is started after stop"
    worker.start()
    steps.wait()


def test_collected_owner_stops_the_thread(steps: Steps) -> None:
    class Owner: ...

    owner = Owner()
    worker = Worker("a worker", steps)
    worker.stop_with(owner)
    worker.start()
    steps.wait()
    del owner
    gc.collect()
    join(steps.threads[0])
    assert not worker.is_alive


def test_stop_inside_the_locked_start_does_not_hang(
    worker: Worker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Any = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        start(thread)
        worker.stop(0.0)
        worker.start()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", starts)
        worker.start()
    steps.wait()
    assert len(set(steps.threads)) == 1
