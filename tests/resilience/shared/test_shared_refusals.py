"""Breakers on a server that says no: missing rights, no memory, foreign values, invalid replies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoglm_throttle.store.breakers import sync
from autoglm_throttle.store.breakers.protocol import RIGHTS
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.resilience.shared.conftest import Made
from tests.resilience.shared.fleets import ONE, PATIENCE_S, notified, watched
from tests.store.polling import until
from tests.store.server import RedisServer

pytestmark = pytest.mark.server


@pytest.fixture
def user(own_server: RedisServer, redis_prefix: str) -> Iterator[str]:
    """Return an address with the permissions of shared breakers alone."""
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
    assert (here.script.failures, there.script.failures, there.subscriber.failures) == (0, 0, 0)
    rejected = {entry[entry.index("object") + 1] for entry in own_server.command("ACL", "LOG")}
    assert rejected <= {"client|setinfo"}, "what redis-py says of itself"


@pytest.mark.parametrize("missing", ["-evalsha", "-time", "-publish", "-zadd", "resetchannels"])
def test_a_missing_right_is_named_and_nothing_else_happens(
    made: Made, own_server: RedisServer, user: str, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.command("ACL", "SETUSER", "me", missing)
    store = made(user, listens=False)
    watched(store)
    store.report_open("a", 0.05, 0, BreakerCause.FAILURES)
    answer = store.acquire("a", ONE)

    def named() -> bool:
        store.acquire("a", ONE)
        return RIGHTS in caplog.text

    until(named, PATIENCE_S, "they are named")
    assert not store.is_up or isinstance(answer, (ProbeLease, RemoteBreakerState))


def test_without_the_right_to_listen_it_reads_once_a_second(
    made: Made, own_server: RedisServer, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "UNSUBSCRIBED_READ_S", 0.05)
    own_server.command("ACL", "SETUSER", "me", "-subscribe")
    here, there = made(user, listens=False), made(user, listens=False)
    watched(here)
    diary = watched(there)
    here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    diary.reads(BreakerState.OPEN)
    assert (there.subscriber.is_listening, there.is_up) == (False, True)


@pytest.mark.usefixtures("hasty")
def test_a_server_without_memory_leaves_each_to_itself(made: Made, own_server: RedisServer) -> None:
    here, there = made(own_server.url), made(own_server.url)
    watched(here)
    diary = watched(there)
    own_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    here.report_open("a", 60.0, 0, BreakerCause.FAILURES)
    for _ in range(20):
        assert there.acquire("a", ONE) is None
    assert diary.states == []
    own_server.command("CONFIG", "SET", "maxmemory", 0)
    diary.reads(BreakerState.OPEN)


@pytest.mark.usefixtures("hasty")
def test_foreign_value_affects_one_breaker_only(made: Made, own_server: RedisServer) -> None:
    store = made(own_server.url)
    own_server.command("SADD", store.protocol.keys("b")[1], "not ours")
    diary = watched(store)
    brief = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=0.5)
    assert store.acquire("b", brief) is None
    until(lambda: isinstance(store.acquire("a", ONE), ProbeLease), PATIENCE_S, "others go on")
    store.report_operator_state("a", BreakerState.CLOSED)
    notified(store)
    assert diary.states == []


def test_invalid_reply_of_the_client_is_a_failure(made: Made, redis_url: str) -> None:
    class Nonsense:
        def pipeline(self, transaction: bool) -> Nonsense:
            return self

        def execute_command(self, *words: object) -> None:
            """Accept any."""

        def execute(self, raise_on_error: bool) -> list[object]:
            return [b"OK"]

        def close(self) -> None:
            raise OSError("twice closed")

        def pubsub(self) -> object:
            raise OSError("no")

    store = made(redis_url, listens=False, connect=Nonsense)
    store.subscribe("a", lambda remote: None)
    store.start()
    until(lambda: not store.is_up, PATIENCE_S, "the loss")
    assert "unexpected reply of the script: b'OK'" in str(store.script.last_error)
