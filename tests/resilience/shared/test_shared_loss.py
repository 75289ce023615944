"""A store that is lost, hangs, forgets or says no: never an error, never a long wait, all well after it."""

from __future__ import annotations

import asyncio
import logging
import operator
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autoglm_throttle.store import client
from autoglm_throttle.store.breakers import state, sync
from autoglm_throttle.store.breakers.sync import RedisBreakerStore
from autoglm_throttle.store.client import TIMEOUT_S
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    RemoteBreakerState,
)
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, notified, watched
from tests.store.polling import until
from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer, newest

pytestmark = pytest.mark.server


DEADLINE_S = 0.05


@pytest.fixture
def prompt_store(made: Made) -> Made:
    """Make stores with the usual deadlines."""
    return partial(made, deadline_s=DEADLINE_S, timeout_s=TIMEOUT_S)


class Unwaited:
    """The module `threading` for code that must not wait."""

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise AssertionError(f"waits for {timeout} s")


@pytest.fixture
def unwaited(monkeypatch: pytest.MonkeyPatch) -> Callable[[RedisBreakerStore], Any]:
    """ProbeRequest a store for a trial; it is an error to wait for the answer."""

    def request(store: RedisBreakerStore) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sync, "threading", Unwaited)
            return store.acquire("a", ONE)

    return request


def lost(store: RedisBreakerStore) -> None:
    """Request until the store counts as lost; each request waits no longer than the deadline."""

    def away() -> bool:
        answer = store.acquire("a", ONE)
        assert answer is None or not store.is_up or isinstance(answer, (ProbeLease, RemoteBreakerState))
        return not store.is_up

    until(away, PATIENCE_S, "the loss")


def test_killed_server_costs_nothing_and_is_used_again(
    made: Made,
    own_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    unwaited: Callable[[RedisBreakerStore], Any],
) -> None:
    here, there = made(own_server.url), made(own_server.url)
    watched(here)
    diary = watched(there)
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        own_server.kill()
        lost(here)
        lost(there)
        assert {unwaited(here) for _ in range(100)} == {None}
        assert here.read_state("a") is None
        here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
        own_server.restart()
        until(lambda: here.is_up and there.is_up, PATIENCE_S, "both are back")
        diary.reads(BreakerState.OPEN)
        # A store is up a moment before its thread says so.
        until(
            lambda: sum("is available again" in line for line in caplog.messages) == 2,
            PATIENCE_S,
            "both say so",
        )
    assert diary.states[0].wait_s < 60.0, "what is left of it"
    lines = [line for line in caplog.messages if "the breaker store" in line]
    assert sum("is unavailable" in line for line in lines) == 2
    assert sum("is available again" in line for line in lines) == 2


def test_a_server_that_hangs_costs_a_deadline_a_few_times(
    prompt_store: Made, own_server: RedisServer, unwaited: Callable[[RedisBreakerStore], Any]
) -> None:
    store = prompt_store(own_server.url)
    watched(store)
    own_server.pause()
    try:
        requested = 0
        while store.is_up:
            assert store.acquire("a", ONE) is None
            requested += 1
        assert requested <= state.FAILURES
        assert unwaited(store) is None
    finally:
        own_server.resume()
    until(lambda: store.is_up, PATIENCE_S, "it is back")
    until(
        lambda: isinstance(store.acquire("a", ONE), ProbeLease),
        PATIENCE_S,
        "what was given in vain goes back",
    )


def test_no_event_loop_waits_for_a_server_that_hangs(prompt_store: Made, own_server: RedisServer) -> None:
    store = prompt_store(own_server.url)
    watched(store)
    turns = 0

    async def requests() -> set[ProbeLease | RemoteBreakerState | None]:
        nonlocal turns
        requested = [asyncio.ensure_future(store.acquire_async("a", ONE)) for _ in range(50)]
        while not all(one.done() for one in requested):
            await asyncio.sleep(0)
            turns += 1
        return {one.result() for one in requested}

    own_server.pause()
    try:
        assert asyncio.run(requests()) == {None}
        assert turns > 20, "it went on meanwhile"
    finally:
        own_server.resume()


@pytest.mark.usefixtures("hasty")
def test_probe_with_a_lost_reply_is_returned(prompt_store: Made, own_server: RedisServer) -> None:
    """The server executes it when it resumes, but no process knows the lease."""
    store = prompt_store(own_server.url)
    watched(store)
    own_server.pause()
    assert store.acquire("a", ONE) is None
    until(lambda: store.script.failures, PATIENCE_S, "the call has failed")
    own_server.resume()
    until(lambda: isinstance(store.acquire("a", ONE), ProbeLease), PATIENCE_S, "long before the lease ends")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "forgets",
    ["restart", pytest.param("flush", marks=pytest.mark.slow), pytest.param("evict", marks=pytest.mark.slow)],
)
def test_forgotten_state_is_sent_again(
    made: Made, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, forgets: str
) -> None:
    monkeypatch.setattr(sync, "READ_INTERVAL_S", 0.1)
    here = made(own_server.url)
    for name in ("open", "forced", "closed"):
        watched(here, name)
    here.report_open("open", 60.0, 3, BreakerCause.SLOW_RATE)
    here.report_operator_state("forced", BreakerState.FORCED_OPEN)
    here.report_operator_state("closed", BreakerState.CLOSED)
    notified(here)
    before = {name: here.state.version(name) for name in ("open", "forced")}
    if forgets == "restart":
        own_server.restart()
    elif forgets == "flush":
        own_server.command("FLUSHALL")
    else:
        own_server.command("DEL", *(here.protocol.keys(name)[0] for name in ("open", "forced", "closed")))
    until(
        lambda: all(here.state.version(name) > before[name] for name in before),
        PATIENCE_S,
        "it is told again",
    )
    there = made(own_server.url)
    for name in ("open", "forced", "closed"):
        there.subscribe(name, lambda remote: None)
    found = there.read_state("open")
    assert found is not None
    assert (found.state, found.rounds, found.cause) == (BreakerState.OPEN, 3, BreakerCause.SLOW_RATE)
    assert 0.0 < found.wait_s < 60.0
    forced = there.read_state("forced")
    assert forced is not None
    assert forced.state is BreakerState.FORCED_OPEN
    assert there.read_state("closed") is None


def test_lost_key_admits_one_probe_only(made: Made, own_server: RedisServer) -> None:
    stores = [made(own_server.url) for _ in range(2)]
    for store in stores:
        watched(store)
    for _ in range(20):
        own_server.command("FLUSHALL")
        answers = [stores[number % 2].acquire("a", ONE) for number in range(4)]
        assert sum(isinstance(answer, ProbeLease) for answer in answers) == 1
        assert sum(isinstance(answer, RemoteBreakerState) for answer in answers) == 3


@pytest.mark.usefixtures("hasty")
def test_probe_result_during_an_outage_is_sent_afterwards(made: Made, slow_proxy: SlowProxy) -> None:
    here, there = made(slow_proxy.url), made(slow_proxy.url)
    watched(here)
    diary = watched(there)
    lease = here.acquire("a", ONE)
    assert isinstance(lease, ProbeLease)
    slow_proxy.reject()
    lost(here)
    here.report_probe("a", lease, Outcome.SUCCESS, 1, 1.0)
    slow_proxy.accept()
    until(lambda: BreakerState.CLOSED in diary.words, PATIENCE_S, "closed")


@pytest.mark.usefixtures("hasty")
def test_if_both_sides_have_moved_open_wins(made: Made, own_server: RedisServer) -> None:
    with SlowProxy(own_server.port) as proxy:
        cut_off, there = made(proxy.url), made(own_server.url)
        own, diary = watched(cut_off), watched(there)
        proxy.reject()
        lost(cut_off)
        cut_off.report_open("a", 60.0, 0, BreakerCause.FAILURES)
        there.report_operator_state("a", BreakerState.CLOSED)
        notified(there)
        proxy.accept()
        diary.reads(BreakerState.OPEN)
        assert own.states == [], "it is open all the time"


@pytest.mark.usefixtures("hasty")
def test_on_return_the_newer_state_wins(made: Made, own_server: RedisServer) -> None:
    with SlowProxy(own_server.port) as proxy:
        cut_off, there = made(proxy.url), made(own_server.url)
        own = watched(cut_off)
        watched(there)
        cut_off.report_open("a", 60.0, 0, BreakerCause.FAILURES)
        notified(cut_off)
        proxy.reject()
        lost(cut_off)
        there.report_operator_state("a", BreakerState.CLOSED)
        notified(there)
        proxy.accept()
        own.reads(BreakerState.CLOSED)


@pytest.mark.usefixtures("hasty")
def test_first_of_two_separate_openings_wins(made: Made, own_server: RedisServer) -> None:
    with SlowProxy(own_server.port) as proxy:
        cut_off, there = made(proxy.url), made(own_server.url)
        own, diary = watched(cut_off), watched(there)
        proxy.reject()
        lost(cut_off)
        there.report_open("a", 30.0, 0, BreakerCause.FAILURES)
        notified(there)
        cut_off.report_open("a", 60.0, 0, BreakerCause.SLOW_RATE)
        proxy.accept()
        own.reads(BreakerState.OPEN)
        assert own.states[0].wait_s <= 30.0
        assert diary.states == []


@pytest.mark.usefixtures("hasty")
def test_a_lost_subscription_is_made_again_and_nothing_is_missed(made: Made, own_server: RedisServer) -> None:
    here, there = made(own_server.url), made(own_server.url)
    watched(here)
    diary = watched(there)
    for _ in range(3):
        own_server.command("CLIENT", "KILL", "TYPE", "pubsub")
        here.report_operator_state("a", BreakerState.FORCED_OPEN)
        here.report_operator_state("a", BreakerState.CLOSED)
        notified(here)
        until(lambda: diary.words[-1:] == [BreakerState.CLOSED], PATIENCE_S, "it is known all the same")
        until(
            lambda: there.subscriber.is_listening and here.subscriber.is_listening,
            PATIENCE_S,
            "it listens again",
        )
    assert there.is_up
    assert there.subscriber.failures >= 1
    assert "ConnectionError" in str(there.subscriber.last_error)


@pytest.mark.usefixtures("hasty")
def test_silent_dead_subscription_is_detected(
    made: Made, own_server: RedisServer, slow_proxy: SlowProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PING_S", 0.05)
    monkeypatch.setattr(client, "SILENCE_LIMIT_S", 0.5)
    store = made(slow_proxy.url, deadline_s=DEADLINE_S, timeout_s=TIMEOUT_S)
    diary = watched(store)
    until(lambda: pings(own_server) > 15, PATIENCE_S, "longer than any silence")
    assert not store.subscriber.failures, "pings keep it"
    slow_proxy.delay_s = 60.0
    until(lambda: store.subscriber.failures, PATIENCE_S, "the silence")
    assert "nothing received for 0.5 s" in str(store.subscriber.last_error)
    assert not store.subscriber.is_listening
    slow_proxy.delay_s = 0.0
    until(lambda: store.subscriber.is_listening and store.is_up, PATIENCE_S, "it listens again")
    assert diary.states == []


def pings(server: RedisServer) -> int:
    """Return how often a server was pinged."""
    notified = server.info("commandstats").get("cmdstat_ping", "calls=0")
    return int(notified.split(",")[0].removeprefix("calls="))


def test_the_log_names_the_missed_deadline(
    made: Made, own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = made(own_server.url, deadline_s=DEADLINE_S)
    answered, script = threading.Event(), store.script
    vars(script)["call_all"] = lambda calls, cluster: [answered.wait(PATIENCE_S)] * len(calls)
    for _ in range(state.FAILURES):
        assert store.acquire("a", ONE) is None
    answered.set()
    assert "each process uses its own breaker state (no answer within 50 ms)" in caplog.text


def test_a_server_that_was_never_there(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    store = made("redis://127.0.0.1:1/0", listens=False)
    began = time.monotonic()
    store.subscribe("a", lambda remote: None)
    assert store.read_state("a") is None
    assert asyncio.run(store.acquire_async("a", ONE)) is None
    store.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    assert time.monotonic() - began < store.deadline_s, "nobody waits for who refuses"
    until(lambda: not store.is_up, PATIENCE_S, "one refusal is enough")
    assert store.script.failures == 1
    said = "each process uses its own breaker state (ConnectionError"
    until(lambda: said in caplog.text, PATIENCE_S, "the thread that lost it logs after the change")


class Traffic:
    """Threads that use guards, count the calls, and record exceptions."""

    def __init__(self, stores: list[RedisBreakerStore]) -> None:
        self.acts = [0] * len(stores)
        self.errors: list[BaseException] = []
        self.leases = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=pair) for pair in enumerate(stores)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def more(self, acts: int = 40) -> None:
        """Wait until each thread has done so much more."""
        wanted = [done + acts for done in self.acts]
        until(lambda: all(map(operator.ge, self.acts, wanted)), PATIENCE_S, "each goes on")

    def _run(self, number: int, store: RedisBreakerStore) -> None:
        chance = random.Random(1)
        while not self._over.is_set():
            try:
                self._act(store, chance)
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                self.errors.append(error)
            self.acts[number] += 1
            self._over.wait(0.001)

    def _act(self, store: RedisBreakerStore, chance: random.Random) -> None:
        match chance.randrange(4):
            case 0:
                store.report_open("a", 0.02, 0, BreakerCause.FAILURES)
            case 1:
                store.read_state("a")
            case _:
                answer = store.acquire("a", ONE)
                if isinstance(answer, ProbeLease):
                    self.leases += 1
                    store.report_probe("a", answer, chance.choice(list(Outcome)), 1, 0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_server_faults_cause_no_error_and_no_long_wait(prompt_store: Made) -> None:
    with RedisServer(newest()) as server:
        stores = [prompt_store(server.url) for _ in range(2)]
        diaries = [watched(store) for store in stores]
        traffic = Traffic(stores)
        try:
            for happens in ("pause", "kill", "flush", "drop", "script", "restart", "pause"):
                error(server, happens)
                traffic.more()
                repaired(server, happens)
                traffic.more()
            until(
                lambda: all(store.is_up and store.subscriber.is_listening for store in stores),
                PATIENCE_S,
                "all are back",
            )
            until(lambda: traffic.leases, PATIENCE_S, "trials are made")
        finally:
            traffic.end()
        assert traffic.errors == []
        until(
            lambda: all(store.is_up and store.subscriber.is_listening for store in stores),
            PATIENCE_S,
            "all are back",
        )
        stores[0].report_operator_state("a", BreakerState.DISABLED)
        until(lambda: diaries[1].words[-1] is BreakerState.DISABLED, PATIENCE_S, "they hear of each other")


def error(server: RedisServer, happens: str) -> None:
    match happens:
        case "pause":
            server.pause()
        case "kill":
            server.kill()
        case "restart":
            server.restart()
        case "flush":
            server.command("FLUSHALL")
        case "script":
            server.command("SCRIPT", "FLUSH")
        case "drop":
            server.command("CLIENT", "KILL", "TYPE", "normal")


def repaired(server: RedisServer, happens: str) -> None:
    if happens == "pause":
        server.resume()
    elif happens == "kill":
        server.restart()
