"""A store that is lost, hangs, forgets or says no: never an error, never a long wait, all well after it."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from autoglm_throttle.resilience.shared import store_health, sync_listener, sync_sender
from autoglm_throttle.resilience.shared.redis_store import RedisBreakerStore
from autoglm_throttle.resilience.shared.scripts import RIGHTS
from autoglm_throttle.resilience.store import ProbeLease, ProbeRequest, RemoteBreakerState
from autoglm_throttle.types import BreakerCause, BreakerState, Outcome
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, SOON_S, watched
from tests.store.polling import until
from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer, newest

pytestmark = pytest.mark.server

BACK_S = store_health.FIRST_PROBE_S * (1.0 + store_health.JITTER) + SOON_S
"""From the first probe's due time at the latest; an outage as short as these has no second pause."""


DEADLINE_S = 0.05


@pytest.fixture
def prompt_store(made: Made) -> Made:
    """Make stores with the usual deadline."""
    return partial(made, deadline_s=DEADLINE_S)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after a tenth of the time."""
    for module, name in [(store_health, "FIRST_S"), (sync_listener, "FIRST_PAUSE_S")]:
        monkeypatch.setattr(module, name, 0.1)
    for module, name in [(store_health, "LONGEST_S"), (sync_listener, "LONGEST_PAUSE_S")]:
        monkeypatch.setattr(module, name, 0.2)


def told(store: RedisBreakerStore) -> None:
    """Wait until all is told."""
    until(lambda: not len(store._fleet_state.pending_writes), PATIENCE_S, "all is told")


def timed(store: RedisBreakerStore, ask: ProbeRequest = ONE) -> tuple[Any, float]:
    began = time.monotonic()
    return store.acquire("a", ask), time.monotonic() - began


def lost(store: RedisBreakerStore) -> None:
    """Ask until the store counts as lost; each who asks waits no longer than the deadline."""

    def away() -> bool:
        answer, took_s = timed(store)
        assert took_s <= store.rules.deadline_s + SOON_S
        assert answer is None or not store.is_up or isinstance(answer, (ProbeLease, RemoteBreakerState))
        return not store.is_up

    until(away, PATIENCE_S, "the loss")


def test_a_server_that_is_killed_costs_nothing_and_is_found_again(
    prompt_store: Made, own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = prompt_store(own_server.url), prompt_store(own_server.url)
    watched(here)
    diary = watched(there)
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        own_server.kill()
        lost(here)
        lost(there)
        answers = [timed(here) for _ in range(100)]
        assert {answer for answer, _ in answers} == {None}
        assert sorted(took_s for _, took_s in answers)[50] <= 0.001
        assert here.read_state("a") is None
        here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
        own_server.restart()
        began = time.monotonic()
        until(lambda: here.is_up and there.is_up, BACK_S, "both are back")
        diary.reads(BreakerState.OPEN)
        print(f"killed: told after {time.monotonic() - began:.2f} s")
    assert diary.states[0].wait_s <= 60.0 - 0.01, "what is left of it"
    lines = [line for line in caplog.messages if "store of the breakers" in line]
    assert sum("is unavailable" in line for line in lines) == 2
    assert sum("answers again" in line for line in lines) == 2


def test_a_server_that_hangs_costs_a_deadline_a_few_times(
    prompt_store: Made, own_server: RedisServer
) -> None:
    store = prompt_store(own_server.url)
    watched(store)
    own_server.pause()
    try:
        waits = []
        while store.is_up:
            waits.append(timed(store)[1])
        assert len(waits) <= store_health.FAILURES
        assert max(waits) <= store.rules.deadline_s + 0.05, waits
        assert timed(store)[1] <= 0.01
        began = time.monotonic()
    finally:
        own_server.resume()
    until(lambda: store.is_up, BACK_S, "it is back")
    print(f"hung: back after {time.monotonic() - began:.2f} s")
    until(
        lambda: isinstance(store.acquire("a", ONE), ProbeLease),
        PATIENCE_S,
        "what was given in vain goes back",
    )


def test_no_event_loop_waits_for_a_server_that_hangs(prompt_store: Made, own_server: RedisServer) -> None:
    store = prompt_store(own_server.url)
    watched(store)
    ticks: list[float] = []

    async def beat() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def asks() -> list[ProbeLease | RemoteBreakerState | None]:
        beating = asyncio.ensure_future(beat())
        answers = await asyncio.gather(*(store.acquire_async("a", ONE) for _ in range(50)))
        beating.cancel()
        return answers

    own_server.pause()
    try:
        began = time.monotonic()
        assert set(asyncio.run(asks())) == {None}
        assert time.monotonic() - began <= store.rules.deadline_s + SOON_S
        assert len(ticks) >= 3, "it went on meanwhile"
    finally:
        own_server.resume()


@pytest.mark.usefixtures("hasty")
def test_a_trial_whose_answer_was_lost_is_given_back(prompt_store: Made, own_server: RedisServer) -> None:
    """The server carries it out once it goes on, and nobody has heard of the lease."""
    store = prompt_store(own_server.url)
    watched(store)
    patient = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=600.0)
    own_server.pause()
    assert timed(store, patient)[0] is None
    until(lambda: store.failures, PATIENCE_S, "the call has failed")
    own_server.resume()
    until(lambda: isinstance(store.acquire("a", patient), ProbeLease), BACK_S, "long before the lease ends")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("forgets", ["restart", "flush", "evict"])
def test_what_the_store_has_forgotten_it_is_told_again(
    made: Made, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, forgets: str
) -> None:
    monkeypatch.setattr(sync_sender, "READ_S", 0.1)
    here = made(own_server.url)
    for name in ("open", "forced", "closed"):
        watched(here, name)
    here.report_open("open", 60.0, 3, BreakerCause.SLOW_RATE)
    here.report_operator_state("forced", BreakerState.FORCED_OPEN)
    here.report_operator_state("closed", BreakerState.CLOSED)
    told(here)
    before = {name: here._fleet_state.position(name)[0] for name in ("open", "forced")}
    if forgets == "restart":
        own_server.restart()
    elif forgets == "flush":
        own_server.command("FLUSHALL")
    else:
        own_server.command("DEL", *(here.rules.keys(name)[0] for name in ("open", "forced", "closed")))
    until(
        lambda: all(here._fleet_state.position(name)[0] > before[name] for name in before),
        PATIENCE_S,
        "it is told again",
    )
    there = made(own_server.url)
    for name in ("open", "forced", "closed"):
        there.subscribe(name, lambda remote: None)
    found = there.read_state("open")
    assert found is not None
    assert (found.state, found.rounds, found.cause) == (BreakerState.OPEN, 3, BreakerCause.SLOW_RATE)
    assert 50.0 < found.wait_s < 60.0
    forced = there.read_state("forced")
    assert forced is not None
    assert forced.state is BreakerState.FORCED_OPEN
    assert there.read_state("closed") is None


def test_a_lost_key_makes_room_for_one_trial_and_no_more(made: Made, own_server: RedisServer) -> None:
    stores = [made(own_server.url) for _ in range(2)]
    for store in stores:
        watched(store)
    for _ in range(20):
        own_server.command("FLUSHALL")
        answers = [stores[number % 2].acquire("a", ONE) for number in range(4)]
        assert sum(isinstance(answer, ProbeLease) for answer in answers) == 1
        assert sum(isinstance(answer, RemoteBreakerState) for answer in answers) == 3


@pytest.mark.usefixtures("hasty")
def test_a_trial_that_ends_while_the_store_is_away_is_told_on_its_return(
    made: Made, slow_proxy: SlowProxy
) -> None:
    here, there = made(slow_proxy.url), made(slow_proxy.url)
    watched(here)
    diary = watched(there)
    patient = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=60.0)
    lease = here.acquire("a", patient)
    assert isinstance(lease, ProbeLease)
    slow_proxy.refuse()
    lost(here)
    here.report_probe("a", lease, Outcome.SUCCESS, 1, 1.0)
    slow_proxy.accept()
    until(lambda: BreakerState.CLOSED in diary.words, PATIENCE_S, "closed")


@pytest.mark.usefixtures("hasty")
def test_if_both_sides_have_moved_open_wins(made: Made, own_server: RedisServer) -> None:
    with SlowProxy(own_server.port) as proxy:
        cut_off, there = made(proxy.url), made(own_server.url)
        own, diary = watched(cut_off), watched(there)
        proxy.refuse()
        lost(cut_off)
        cut_off.report_open("a", 60.0, 0, BreakerCause.FAILURES)
        there.report_operator_state("a", BreakerState.CLOSED)
        told(there)
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
        told(cut_off)
        proxy.refuse()
        lost(cut_off)
        there.report_operator_state("a", BreakerState.CLOSED)
        told(there)
        proxy.accept()
        own.reads(BreakerState.CLOSED)


@pytest.mark.usefixtures("hasty")
def test_of_two_that_opened_apart_the_first_who_tells_is_believed(
    made: Made, own_server: RedisServer
) -> None:
    with SlowProxy(own_server.port) as proxy:
        cut_off, there = made(proxy.url), made(own_server.url)
        own, diary = watched(cut_off), watched(there)
        proxy.refuse()
        lost(cut_off)
        there.report_open("a", 30.0, 0, BreakerCause.FAILURES)
        told(there)
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
        told(here)
        until(lambda: diary.words[-1:] == [BreakerState.CLOSED], PATIENCE_S, "it is known all the same")
        until(lambda: there.is_listening and here.is_listening, PATIENCE_S, "it listens again")
    assert there.is_up
    assert there._listener.failures >= 1
    assert "ConnectionError" in str(there._listener.last_error)


@pytest.mark.usefixtures("hasty")
def test_a_subscription_that_is_dead_without_a_word_is_found_out(
    made: Made, slow_proxy: SlowProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_listener, "PING_S", 0.05)
    monkeypatch.setattr(sync_listener, "SILENCE_S", 0.2)
    store = made(slow_proxy.url)
    diary = watched(store)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 0.5, PATIENCE_S, "longer than any silence")
    assert not store._listener.failures, "pings keep it"
    slow_proxy.delay_s = 60.0
    until(lambda: store._listener.failures, PATIENCE_S, "the silence")
    assert "nothing received for 0.2 s" in str(store._listener.last_error)
    assert "not listening" in repr(store._listener)
    slow_proxy.delay_s = 0.0
    until(lambda: store.is_listening and store.is_up, PATIENCE_S, "it listens again")
    assert diary.states == []


@pytest.fixture
def user(own_server: RedisServer, redis_prefix: str) -> Iterator[str]:
    """Address for one who may do what shared breakers need, and no more."""
    rights = [f"+{right}" for right in RIGHTS.split()]
    keys = [f"~{redis_prefix}:*", f"&{redis_prefix}:*"]
    own_server.command("ACL", "SETUSER", "me", "reset", "on", ">pw", *keys, *rights)
    yield own_server.url_as("me", "pw")
    own_server.command("ACL", "DELUSER", "me")


def test_the_rights_that_are_named_are_enough(made: Made, own_server: RedisServer, user: str) -> None:
    here, there = made(user), made(user)
    watched(here)
    diary = watched(there)
    here.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    until(lambda: isinstance(here.acquire("a", ONE), ProbeLease), PATIENCE_S, "a trial")
    here.report_operator_state("a", BreakerState.DISABLED)
    diary.reads(BreakerState.OPEN, BreakerState.DISABLED)
    until(lambda: there.acquire("a", ONE) is not None, PATIENCE_S, "an answer")
    assert (here.failures, there.failures, there._listener.failures) == (0, 0, 0)
    refused = {entry[entry.index("object") + 1] for entry in own_server.command("ACL", "LOG")}
    assert refused <= {"client|setinfo"}, "what redis-py says of itself"


@pytest.mark.parametrize("missing", ["-evalsha", "-time", "-publish", "-zadd", "resetchannels"])
def test_a_missing_right_is_named_and_nothing_else_happens(
    made: Made, own_server: RedisServer, user: str, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.command("ACL", "SETUSER", "me", missing)
    store = made(user, listens=False)
    watched(store)
    store.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    answer = store.acquire("a", ONE)
    asks = lambda: timed(store) and RIGHTS in caplog.text  # noqa: E731
    until(asks, PATIENCE_S, "they are named")
    assert not store.is_up or isinstance(answer, (ProbeLease, RemoteBreakerState))


def test_without_the_right_to_listen_it_reads_once_a_second(
    made: Made, own_server: RedisServer, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_sender, "DEAF_READ_S", 0.05)
    own_server.command("ACL", "SETUSER", "me", "-subscribe")
    here, there = made(user, listens=False), made(user, listens=False)
    watched(here)
    diary = watched(there)
    here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    assert (there.is_listening, there.is_up) == (False, True)


@pytest.mark.usefixtures("hasty")
def test_a_server_without_memory_leaves_each_to_itself(made: Made, own_server: RedisServer) -> None:
    here, there = made(own_server.url), made(own_server.url)
    watched(here)
    diary = watched(there)
    own_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    for _ in range(20):
        answer, took_s = timed(there)
        assert answer is None
        assert took_s <= there.rules.deadline_s + SOON_S
    assert diary.states == []
    own_server.command("CONFIG", "SET", "maxmemory", 0)
    diary.reads(BreakerState.OPEN)


@pytest.mark.usefixtures("hasty")
def test_a_foreign_value_is_the_trouble_of_one_breaker(made: Made, own_server: RedisServer) -> None:
    store = made(own_server.url)
    own_server.command("SADD", store.rules.keys("b")[1], "not ours")
    diary = watched(store)
    assert store.acquire("b", ONE) is None
    until(lambda: isinstance(store.acquire("a", ONE), ProbeLease), PATIENCE_S, "others go on")
    store.report_operator_state("a", BreakerState.CLOSED)
    told(store)
    assert diary.states == []


def test_a_server_that_was_never_there(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    store = made("redis://127.0.0.1:1/0", listens=False)
    began = time.monotonic()
    store.subscribe("a", lambda remote: None)
    assert store.read_state("a") is None
    assert asyncio.run(store.acquire_async("a", ONE)) is None
    store.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    assert time.monotonic() - began <= SOON_S, "nobody waits for who refuses"
    until(lambda: not store.is_up, PATIENCE_S, "one refusal is enough")
    assert store.failures == 1
    assert "each process goes by its own (ConnectionError" in caplog.text


def test_a_client_that_answers_nonsense_is_a_failure_like_any_other(made: Made, redis_url: str) -> None:
    class Nonsense:
        def evalsha(self, *words: object) -> object:
            return b"OK"

        def close(self) -> None:
            raise OSError("twice closed")

        def pubsub(self) -> object:
            raise OSError("no")

    store = made(redis_url, listens=False, connect=Nonsense)
    store.subscribe("a", lambda remote: None)
    until(lambda: not store.is_up, PATIENCE_S, "the loss")
    assert "unexpected reply of the script: b'OK'" in str(store.last_error)


class Traffic:
    """Threads that do all that guards do, and note how long it took and what was raised."""

    def __init__(self, stores: list[RedisBreakerStore]) -> None:
        self.worst_s = 0.0
        self.errors: list[BaseException] = []
        self.leases = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(store,)) for store in stores]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, store: RedisBreakerStore) -> None:
        chance = random.Random(1)
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._act(store, chance)
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                self.errors.append(error)
            self.worst_s = max(self.worst_s, time.monotonic() - began)
            time.sleep(0.001)

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


@pytest.mark.usefixtures("hasty")
def test_whatever_happens_to_the_server_nobody_gets_an_error_or_waits_for_long(prompt_store: Made) -> None:
    with RedisServer(newest()) as server:
        stores = [prompt_store(server.url) for _ in range(2)]
        diaries = [watched(store) for store in stores]
        traffic = Traffic(stores)
        try:
            for happens in ("pause", "kill", "flush", "drop", "script", "restart", "pause"):
                trouble(server, happens)
                threading.Event().wait(0.15)
                repaired(server, happens)
                threading.Event().wait(0.15)
        finally:
            traffic.end()
        assert traffic.errors == []
        assert traffic.worst_s <= stores[0].rules.deadline_s + SOON_S
        until(lambda: all(store.is_up and store.is_listening for store in stores), PATIENCE_S, "all are back")
        given = traffic.leases
        assert given, "trials were made"
        stores[0].report_operator_state("a", BreakerState.DISABLED)
        until(lambda: diaries[1].words[-1] is BreakerState.DISABLED, PATIENCE_S, "they hear of each other")


def trouble(server: RedisServer, happens: str) -> None:
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
