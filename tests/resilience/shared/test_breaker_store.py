"""Two stores as two processes on each kind of server: states found by one are known to the other."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from autoglm_throttle.resilience.fleet_link import BreakerStore
from autoglm_throttle.store.breakers import state, sync
from autoglm_throttle.store.breakers.protocol import escape_name
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
from tests.resilience.shared.fleets import ONE, PATIENCE_S, Diary, watched
from tests.store.polling import Jumps, until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

NAMES = ["vector-db", "https://api.example:8443/v1 {x}", "über\nnacht", "}{", ""]


def lease_of(store: RedisBreakerStore, name: str = "a", request: ProbeRequest = ONE) -> ProbeLease:
    found: list[ProbeLease] = []

    def requested() -> bool:
        answer = store.acquire(name, request)
        if isinstance(answer, ProbeLease):
            found.append(answer)
        return bool(found)

    until(requested, PATIENCE_S, "a lease")
    return found[0]


def publish(server: RedisServer, store: RedisBreakerStore, *words: object, name: str = "a") -> None:
    """Publish an update, as another process would."""
    text = " ".join([escape_name(name), *map(str, words), "somebody"])
    server.command("PUBLISH", store.protocol.channel, text)


def test_it_is_a_store_of_breakers(made: Made, redis_url: str) -> None:
    store: BreakerStore = made(redis_url)
    assert store.is_up


@pytest.mark.parametrize("name", NAMES)
def test_a_name_may_hold_any_character(made: Made, redis_url: str, name: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here, name)
    diary = watched(there, name)
    here.report_open(name, 0.05, 2, BreakerCause.SLOW_RATE)
    diary.reads(BreakerState.OPEN)
    assert (diary.states[0].rounds, diary.states[0].cause) == (2, BreakerCause.SLOW_RATE)
    lease = lease_of(there, name)
    there.report_probe(name, lease, Outcome.SUCCESS, 1, 1.0)
    until(
        lambda: (found := there.read_state(name)) and found.state is BreakerState.CLOSED, PATIENCE_S, "closed"
    )


def test_opening_reaches_others_at_once_and_not_its_sender(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 3600.0)
    here, there = made(redis_url), made(redis_url)
    own, diary = watched(here), watched(there)
    for number in range(20):
        diary.notified.clear()
        here.report_open("a", 60.0, number, BreakerCause.FAILURES)
        assert diary.notified.wait(PATIENCE_S)
    assert [remote.rounds for remote in diary.states] == list(range(20))
    assert 0.0 < diary.states[-1].wait_s <= 60.0
    assert diary.threads == {sync.THREAD_NAME}
    assert own.states == []


def test_the_first_call_knows_the_state(made: Made, redis_url: str) -> None:
    here = made(redis_url)
    here.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    until(lambda: not here.state.has_work(), PATIENCE_S, "it is told")
    for _ in range(20):
        fresh = made(redis_url, listens=False)
        fresh.subscribe("a", lambda remote: None)
        found = fresh.read_state("a")
        fresh.stop()
        assert found is not None
        assert found.state is BreakerState.OPEN


def test_known_breaker_is_not_queried_again(made: Made, redis_url: str) -> None:
    store = made(redis_url)
    watched(store)
    calls = store.script.calls
    for _ in range(100):
        assert store.read_state("a") is None
        assert store.read_state("never watched") is None
    assert store.script.calls == calls


def test_many_guards_are_read_together(made: Made, redis_url: str) -> None:
    here = made(redis_url)
    names = [f"guard {number}" for number in range(state.READ_BATCH * 2 + 5)]
    for name in names[::50]:
        here.report_open(name, 600.0, 0, BreakerCause.FAILURES)
    until(lambda: not here.state.has_work(), PATIENCE_S, "all is told")
    there = made(redis_url, listens=False)
    diaries = {name: Diary() for name in names}
    for name, diary in diaries.items():
        there.subscribe(name, diary.changed)
    for name in names:
        found = there.read_state(name)
        assert (found is not None) == (name in names[::50]), name
    assert all(diaries[name].words == [BreakerState.OPEN] for name in names[::50])


def test_successful_probe_closes_for_all(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    own, diary = watched(here), watched(there)
    here.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    lease = lease_of(here)
    rejected = there.acquire("a", ONE)
    assert isinstance(rejected, RemoteBreakerState)
    assert rejected.state is BreakerState.HALF_OPEN
    here.report_probe("a", lease, Outcome.SUCCESS, 1, 1.0)
    diary.reads(BreakerState.OPEN, BreakerState.CLOSED)
    assert own.states == []
    here.report_probe("a", lease, Outcome.FAILURE, 1, 1.0)
    assert not here.state.pending, "a trial ends once"


def test_failed_probe_opens_for_all(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    diary = watched(there)
    here.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    here.report_probe("a", lease_of(here), Outcome.SLOW, 1, 700.0)
    diary.reads(BreakerState.OPEN, BreakerState.OPEN)
    assert (diary.states[1].rounds, diary.states[1].cause) == (1, BreakerCause.TRIAL)
    assert 600.0 < diary.states[1].wait_s <= 700.0
    answer = here.acquire("a", ONE)
    assert isinstance(answer, RemoteBreakerState)
    assert answer.state is BreakerState.OPEN
    assert 600.0 < answer.wait_s <= 700.0


def test_last_successful_probe_closes_the_breaker(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    own, diary = watched(here), watched(there)
    both = ProbeRequest(half_open_max=2, successes_needed=2, limits_concurrent=False, lease_s=600.0)
    here.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    mine, theirs = lease_of(here, request=both), lease_of(there, request=both)
    there.report_probe("a", theirs, Outcome.SUCCESS, 2, 1.0)
    until(lambda: not there.state.pending, PATIENCE_S, "it is told")
    here.report_probe("a", mine, Outcome.SUCCESS, 2, 1.0)
    own.reads(BreakerState.CLOSED)
    diary.reads(BreakerState.OPEN, BreakerState.CLOSED)


@pytest.mark.parametrize("state", [BreakerState.FORCED_OPEN, BreakerState.DISABLED, BreakerState.CLOSED])
def test_operator_state_reaches_all(made: Made, redis_url: str, state: BreakerState) -> None:
    here, there = made(redis_url), made(redis_url)
    own, diary = watched(here), watched(there)
    here.report_operator_state("a", state)
    diary.reads(state)
    assert diary.states[0].cause is BreakerCause.OPERATOR
    assert own.states == []


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


def held_up(store: RedisBreakerStore, begun: threading.Event | None = None) -> threading.Event:
    """Let each call to the server wait until the event is set; ``begun`` is set by the first one."""
    goes_on, script = threading.Event(), store.script
    call = script.call_all

    def late(calls: Sequence[Any], *, cluster: bool) -> list[object]:
        if begun is not None:
            begun.set()
        goes_on.wait(PATIENCE_S)
        return call(calls, cluster=cluster)

    vars(script)["call_all"] = late
    return goes_on


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


def test_messages_twice_or_in_another_order_change_nothing(
    made: Made, redis_server: RedisServer, redis_url: str
) -> None:
    store = made(redis_url)
    diary = watched(store)
    for version in (5, 9, 7, 9, 3, 9, 8):
        publish(redis_server, store, version, "open", 1_000_000, version, "failures")
    publish(redis_server, store, 10, "closed", 0, 0, "trial")
    until(lambda: BreakerState.CLOSED in diary.words, PATIENCE_S, "the last")
    versions = [remote.version for remote in diary.states]
    assert versions == sorted(set(versions))
    assert set(versions) <= {5, 9, 10}
    assert versions[-1] == 10


def test_foreign_messages_are_counted_and_ignored(
    made: Made, redis_server: RedisServer, redis_url: str
) -> None:
    store = made(redis_url)
    diary = watched(store)
    redis_server.command("PUBLISH", store.protocol.channel, "hello")
    publish(redis_server, store, 5, "ajar", 0, 0, "trial")
    publish(redis_server, store, 5, "open", 0, 0, "trial", name="unknown")
    publish(redis_server, store, 5, "closed", 0, 0, "trial")
    diary.reads(BreakerState.CLOSED)
    assert store.ignored == 2


def test_a_message_that_is_lost_is_made_up_for(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 0.1)
    here, there = made(redis_url), made(redis_url)
    watched(here)
    diary = watched(there)
    monkeypatch.setattr(there.subscriber, "on_message", lambda data: None)
    here.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    assert diary.threads == {sync.THREAD_NAME}


def test_nothing_falls_between_subscription_and_reading(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ_INTERVAL_S", "UNSUBSCRIBED_READ_S"):
        monkeypatch.setattr(sync, name, 3600.0)
    here, there = made(redis_url), made(redis_url, listens=False)
    watched(here)
    there.subscriber.due_s = math.inf  # it has read the state and does not yet listen
    diary = watched(there)
    monkeypatch.setattr(there.subscriber, "on_message", lambda data: None)
    here.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    until(lambda: here.state.version("a"), PATIENCE_S, "it is told")
    assert diary.states == []
    there.subscriber.due_s = 0.0
    there.wake()
    diary.reads(BreakerState.OPEN)


def test_a_breaker_that_raises_ends_nothing(
    made: Made, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)

    def raises(remote: RemoteBreakerState) -> None:
        raise KeyError("no")

    there.subscribe("a", raises)
    diary = watched(there, "b")
    here.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    here.report_open("b", 600.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    until(lambda: there.state.callback_errors == 1, PATIENCE_S, "it is counted")
    assert "the listener of breaker a failed" in caplog.text


def test_a_breaker_that_is_gone_is_read_no_more(
    made: Made, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 0.05)
    store = made(redis_url)
    diary, kept = Diary(), watched(store, "b")
    store.subscribe("a", diary.changed)
    assert set(store.state.subscriptions) == {"a", "b"}
    del diary
    gc.collect()
    until(lambda: set(store.state.subscriptions) == {"b"}, PATIENCE_S, "only one is left")
    assert kept.states == []


def test_re_registered_breaker_receives_its_state(made: Made, redis_url: str) -> None:
    here, there = made(redis_url), made(redis_url)
    watched(here)
    diary = watched(there)
    here.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    assert watched(there).words == [BreakerState.OPEN]


def test_updates_wait_while_a_newer_write_is_pending(
    made: Made, redis_server: RedisServer, redis_url: str
) -> None:
    store = made(redis_url)
    diary = watched(store)
    goes_on = held_up(store)
    store.report_open("a", 600.0, 0, BreakerCause.FAILURES)
    publish(redis_server, store, 5, "closed", 0, 0, "trial")
    publish(redis_server, store, 5, "closed", 0, 0, "trial", name="b")
    until(lambda: store.subscriber.is_listening, PATIENCE_S, "it listens")
    goes_on.set()
    until(lambda: store.state.version("a") > 5, PATIENCE_S, "it is told")
    assert diary.states == [], "the answer to what was told decides"


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
