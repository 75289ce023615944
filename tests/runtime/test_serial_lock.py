"""A lock that defers the actions of finalizers until its thread has left it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from autoglm_throttle._runtime.serial_lock import SerialLock
from tests.store.polling import until

PATIENCE_S = 60.0
ROUNDS = 300


class Garbage:
    """An object that only the garbage collector frees, and that calls a function then."""

    def __init__(self, on_end: Callable[[], object]) -> None:
        self.itself = self
        self.on_end = on_end

    def __del__(self) -> None:
        self.on_end()


@pytest.fixture
def constant_collection() -> Iterator[None]:
    """The garbage collector runs at every allocation of an object that it tracks."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_action_outside_the_lock_runs_at_once_under_it() -> None:
    lock, seen = SerialLock(), list[bool]()
    lock.run(lambda: seen.append(lock.is_held()))
    assert seen == [True]
    assert not lock.is_held()


def test_lock_is_held_by_one_thread_only() -> None:
    lock, seen = SerialLock(), list[bool]()
    with lock:
        in_thread(lambda: seen.append(lock.is_held()))
        assert lock.is_held()
    assert seen == [False]


def region(lock: SerialLock, action: Callable[[], object]) -> None:
    with lock:
        action()


def request_path(lock: SerialLock, action: Callable[[], object]) -> None:
    lock.acquire()
    try:
        action()
    finally:
        lock.release()


def deferred(lock: SerialLock, action: Callable[[], object]) -> None:
    with lock:
        lock.run(action)


@pytest.mark.usefixtures("many_switches")
def test_regions_of_threads_exclude_each_other() -> None:
    lock, total = SerialLock(), [0]

    def count() -> None:
        seen = total[0]
        for _ in range(3):  # time for others
            seen += 0
        total[0] = seen + 1

    def works(way: Callable[[SerialLock, Callable[[], object]], None]) -> None:
        for _ in range(ROUNDS):
            way(lock, count)

    ways = (region, request_path, deferred, SerialLock.run)
    threads = [threading.Thread(target=works, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    lock.run_pending()
    assert total == [len(ways) * ROUNDS]


def test_actions_inside_a_region_run_once_after_it_in_order() -> None:
    lock, seen = SerialLock(), list[tuple[int, bool]]()
    with lock:
        for number in range(3):
            lock.run(lambda number=number: seen.append((number, lock.is_held())))  # type: ignore[misc]
        assert seen == []
    assert seen == [(0, True), (1, True), (2, True)]
    with lock:
        pass
    assert len(seen) == 3


def test_action_inside_nested_regions_waits_for_the_outer_end() -> None:
    lock, seen = SerialLock(), list[str]()
    with lock:
        with lock:
            lock.run(lambda: seen.append("deferred"))
        seen.append("inner left")
    assert seen == ["inner left", "deferred"]


def test_action_is_not_lost_if_the_region_raises() -> None:
    lock, seen = SerialLock(), list[int]()

    def fails() -> None:
        with lock:
            lock.run(lambda: seen.append(1))
            raise KeyError("no")

    with pytest.raises(KeyError):
        fails()
    assert seen == [1]


def test_action_of_an_action_runs_after_it() -> None:
    lock, seen = SerialLock(), list[str]()

    def first() -> None:
        lock.run(lambda: seen.append("second"))
        seen.append("first")

    lock.run(first)
    assert seen == ["first", "second"]


def test_pending_action_runs_without_the_lock() -> None:
    lock, seen = SerialLock(), list[bool]()
    with lock:
        lock.pending.append(lambda: seen.append(lock.is_held()))
    assert seen == [False]


def test_another_thread_may_run_what_is_pending() -> None:
    lock, ran_in = SerialLock(), list[str]()

    lock.acquire()
    lock.run(lambda: ran_in.append(threading.current_thread().name))
    lock.run_pending()
    assert ran_in == [], "this thread holds the lock"
    lock.release()
    thread = threading.Thread(target=region, args=(lock, int), name="another")
    thread.start()
    thread.join(PATIENCE_S)
    lock.run_pending()
    assert ran_in == ["another"]


@pytest.mark.usefixtures("constant_collection")
def test_finalizer_in_a_region_does_not_change_its_state() -> None:
    lock, total, amid = SerialLock(), [0], list[bool]()

    def settle() -> None:
        total[0] += 1

    def end() -> None:
        amid.append(lock.is_held())
        lock.run(settle)

    for _ in range(ROUNDS):
        with lock:
            before = total[0]
            Garbage(end)
            for _ in range(10):
                Garbage(lambda: None)  # each allocation may free what was dropped before
            assert total[0] == before
            total[0] = before + 1
    gc.collect()
    assert total == [2 * ROUNDS]
    assert any(amid), "the collector ran inside the regions"


@pytest.mark.usefixtures("constant_collection", "many_switches")
def test_finalizers_of_many_threads_are_all_counted() -> None:
    lock, total = SerialLock(), [0]

    def settle() -> None:
        seen = total[0]
        Garbage(lambda: None)
        total[0] = seen + 1

    def works() -> None:
        for _ in range(ROUNDS // 3):
            with lock:
                Garbage(lambda: lock.run(settle))
                settle()

    threads = [threading.Thread(target=works) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    due = 2 * len(threads) * (ROUNDS // 3)

    def all_are_counted() -> bool:
        gc.collect()  # does nothing while a thread of an earlier test is amid a collection
        lock.run_pending()
        return total[0] >= due

    until(all_are_counted, PATIENCE_S, "the end of all finalizers")
    assert total == [due]


def test_many_deferred_actions_do_not_nest() -> None:
    lock, done = SerialLock(), list[int]()
    with lock:
        for number in range(5000):
            lock.run(partial(done.append, number))
        assert done == []
    assert done == list(range(5000))


def test_exception_of_a_deferred_action_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock, done = SerialLock(), list[int]()

    def fail() -> None:
        raise KeyError("mine")

    with lock:
        lock.run(fail)
        lock.run(partial(done.append, 1))
    assert done == [1]
    assert "failed" in caplog.text


class Turn:
    """A lock before whose release another thread queues an action, and continues because it is held."""

    def __init__(self, lock: SerialLock, done: list[str]) -> None:
        self.lock = lock
        self.done = done
        self.taken = False

    def acquire(self, *, blocking: bool) -> bool:
        assert not blocking
        free, self.taken = not self.taken, True
        return free

    def release(self) -> None:
        if self.done == ["first"]:
            self.lock.pending.append(lambda: self.done.append("second"))
            self.lock.run_pending()
            assert self.done == ["first"]
        self.taken = False


def test_draining_thread_checks_again_before_it_ends() -> None:
    lock = SerialLock()
    done: list[str] = []
    lock._draining = Turn(lock, done)  # type: ignore[assignment]
    lock.pending.append(lambda: done.append("first"))
    lock.run_pending()
    assert done == ["first", "second"]
