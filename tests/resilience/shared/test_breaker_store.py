"""Two stores as two processes on each kind of server: states found by one are known to the other."""

from __future__ import annotations

import gc
import math

import pytest

from autoglm_throttle.resilience.fleet_link import BreakerStore
from autoglm_throttle.store.breakers import state, sync
from autoglm_throttle.store.breakers.protocol import escape_name
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, Diary, held_up, lease_of, watched
from tests.store.polling import until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server


NAMES = ["vector-db", "https://api.example:8443/v1 {x}", "über\nnacht", "}{", ""]


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
