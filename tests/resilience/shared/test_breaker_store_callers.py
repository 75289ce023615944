"""The store of breakers: callers that are cancelled or interrupted, locks, and the life of its thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable

import anyio
import pytest

from autoglm_throttle.store.breakers import sync
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.loops import run
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, Diary, held_up, lease_of, watched
from tests.store.polling import Jumps, until

pytestmark = pytest.mark.server


def test_returned_slot_is_free_for_the_next_query(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    for _ in range(50):
        lease = store.acquire("a", ONE)
        assert isinstance(lease, ProbeLease)
        store.report_probe("a", lease, Outcome.NEUTRAL, 1, 1.0)


def test_waiting_blocks_no_event_loop(made: Made, redis_url: str, backend: str) -> None:
    store = made(redis_url)
    answers: list[ProbeLease | RemoteBreakerState | None] = []

    async def requests() -> None:
        answers.append(await store.acquire_async("a", ONE))

    async def task() -> None:
        store.subscribe("a", Diary().changed)
        assert await store.read_state_async("a") is None
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(requests)
        assert await store.read_state_async("a") is not None

    run(backend, task)
    assert sum(isinstance(answer, ProbeLease) for answer in answers) == 1
    assert sum(isinstance(answer, RemoteBreakerState) for answer in answers) == 19


def free(store: RedisBreakerStore, request: ProbeRequest = ONE) -> bool:
    """Whether another process gets the place."""
    answer = store.acquire("a", request)
    return isinstance(answer, ProbeLease)


class Threading:
    """Build a wait that is interrupted by the keyboard."""

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt


def test_a_lease_that_comes_too_late_goes_back(made: Made, redis_url: str) -> None:
    here, there = made(redis_url, deadline_s=0.05), made(redis_url)
    watched(here)
    goes_on = held_up(here)
    began = time.monotonic()
    assert here.acquire("a", ONE) is None
    assert time.monotonic() - began >= here.deadline_s * 0.9
    goes_on.set()
    until(lambda: free(there, ONE), PATIENCE_S, "its place is free long before the lease ends")


def test_lease_of_a_cancelled_caller_is_returned(made: Made, redis_url: str, backend: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    goes_on = held_up(here)

    async def task() -> None:
        with anyio.move_on_after(0.01):
            await here.acquire_async("a", ONE)
        goes_on.set()

    run(backend, task)
    until(lambda: free(there, ONE), PATIENCE_S, "its place is free long before the lease ends")


def test_lease_arriving_at_a_cancellation_is_returned(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    goes_on = held_up(here)

    async def task() -> None:
        requests = asyncio.ensure_future(here.acquire_async("a", ONE))
        await asyncio.sleep(0)
        goes_on.set()
        until(lambda: here.state.tickets, PATIENCE_S, "it is given")  # the loop stands still meanwhile
        requests.cancel()
        with pytest.raises(asyncio.CancelledError):
            await requests

    asyncio.run(task())
    until(lambda: free(there, ONE), PATIENCE_S, "its place is free long before the lease ends")
    assert not here.state.tickets


def test_a_lease_for_a_thread_that_is_interrupted_goes_back(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    goes_on = held_up(here)
    with monkeypatch.context() as patch:
        patch.setattr("autoglm_throttle.store.breakers.sync.threading", Threading)
        with pytest.raises(KeyboardInterrupt):
            here.acquire("a", ONE)
    goes_on.set()
    until(lambda: free(there, ONE), PATIENCE_S, "its place is free long before the lease ends")


def test_blocked_event_loop_misses_no_reply(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    goes_on = held_up(store)

    async def task() -> object:
        requests = asyncio.ensure_future(store.acquire_async("a", ONE))
        await asyncio.sleep(0)
        goes_on.set()
        until(lambda: store.state.tickets, PATIENCE_S, "it is given")  # the loop stands still meanwhile
        Jumps(asyncio.get_running_loop())(store.deadline_s * 2)
        return await requests

    assert isinstance(asyncio.run(task()), ProbeLease)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == sync.THREAD_NAME]


def test_its_thread_begins_with_the_first_guard_and_ends_with_it(made: Made, redis_url: str) -> None:
    assert threads() == []
    store = made(redis_url, listens=False)
    assert threads() == []
    before = store.is_running
    store.subscribe("a", lambda remote: None)
    store.start()
    assert threads() == [sync.THREAD_NAME]
    assert (before, store.is_running) == (False, True)
    store.stop(PATIENCE_S)
    assert threads() == []
    store.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    assert threads() == [], "what comes after the end begins nothing"
    assert isinstance(store.acquire("a", ONE), RemoteBreakerState), (
        "but the next question does, and tells it before"
    )


def test_pending_writes_are_sent_before_the_end(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    diary = watched(there)
    goes_on = held_up(here)
    names = [f"n{number}" for number in range(10)]
    for name in ["a", *names]:
        here.report_open(name, 600.0, 0, BreakerCause.FAILURES)
    goes_on.set()
    here.stop(PATIENCE_S)
    diary.reads(BreakerState.OPEN)
    for name in names:
        there.subscribe(name, lambda remote: None)
        assert there.read_state(name) is not None, name


def test_waiting_queries_end_with_the_store(made: Made, redis_url: str) -> None:
    store = made(redis_url, deadline_s=PATIENCE_S * 10)
    begun = threading.Event()
    goes_on = held_up(store, begun)
    answers: list[object] = []
    requests: Callable[[], None] = lambda: answers.append(store.acquire("a", ONE))  # noqa: E731
    waiting = [threading.Thread(target=requests) for _ in range(2)]
    waiting[0].start()
    assert begun.wait(PATIENCE_S)
    waiting[1].start()
    until(store.state.has_work, PATIENCE_S, "one waits")
    store.stop(0.0)
    goes_on.set()
    for thread in waiting:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert answers.count(None) >= 1


def test_result_reported_under_the_lock_is_added_after_it(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    lease = lease_of(store)
    goes_on = held_up(store)
    with store.state.lock:  # as by a finalizer amid a region
        store.report_probe("a", lease, Outcome.NEUTRAL, 1, 1.0)
        store.report_open("b", 600.0, 0, BreakerCause.FAILURES)
        assert store.state.tickets
        assert len(store.state.take_work()[0]) == 0
    assert not store.state.tickets
    assert len(store.state.take_work()[0]) == 2
    goes_on.set()
    until(lambda: free(store), PATIENCE_S, "the probe is returned")


def test_query_closed_under_the_lock_returns_its_lease(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    requests = store.acquire_async("a", ONE)

    goes_on = held_up(store)

    async def begins() -> None:
        requests.send(None)
        goes_on.set()
        until(lambda: store.state.tickets, PATIENCE_S, "a lease")

    asyncio.run(begins())
    with store.state.lock:
        requests.close()  # as the garbage collector does
        assert store.state.tickets
    assert not store.state.tickets
    until(lambda: free(store), PATIENCE_S, "the probe is returned")


def test_thread_ends_with_its_owner(made: Made, redis_url: str) -> None:
    owner, store = Diary(), made(redis_url)
    store.stop_with(owner)
    del owner
    gc.collect()
    until(lambda: not threads(), PATIENCE_S, "its end")


def test_no_thread_left_is_no_error_of_the_call(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = made(redis_url, listens=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        store.subscribe("a", lambda remote: None)
        assert (store.read_state("a"), store.acquire("a", ONE), store.is_up) == (None, None, False)
        assert not store.subscriber.is_listening
    assert "can't start new thread" in caplog.text
    store.stop()
    store.start()
    until(lambda: store.is_up, PATIENCE_S, "it has one now")
