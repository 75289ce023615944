"""``breaker.lua`` on real servers: each command at an instant of ours, and any of them against a twin."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.breakers.protocol import (
    BreakerProtocol,
    ProbeResult,
    ScriptArguments,
    StateWrite,
    Write,
    parse_reply,
    parse_states,
)
from autoglm_throttle.types import (
    BreakerCause,
    BreakerState,
    Outcome,
    ProbeLease,
    ProbeRequest,
    RemoteBreakerState,
)
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

SCRIPT = resources.files("autoglm_throttle.store").joinpath("breakers/breaker.lua").read_text("utf-8")
READS_TIME = "redis.call('TIME')"
TIMED = SCRIPT.replace(READS_TIME, "{ table.remove(ARGV, 1), table.remove(ARGV, 1) }")
"""The same with the clock as two more arguments."""
START_S = 1_800_000_000.0
NAME = "a"
ONE = ProbeRequest(half_open_max=1, successes_needed=1, limits_concurrent=False, lease_s=0.5)
MINUTE_MS = 60_000
"""Longest wait for an expiry on the server, which has its own clock."""


class Reply(NamedTuple):
    """What the script has answered."""

    done: bool
    remote: RemoteBreakerState | None
    lease: ProbeLease | None


class Store:
    """One breaker on a server, at times of ours."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client = client
        self.wire = BreakerProtocol(StoreSettings(redis_prefix=prefix), "me")
        self.clock_s = START_S
        self.known = 0

    def call(self, words: ScriptArguments) -> Reply:
        keys, arguments = words
        micros = round(self.clock_s * 1e6)
        reports = self.client.eval(TIMED, len(keys), *keys, *divmod(micros, 10**6), *arguments)
        return Reply(*parse_reply(reports))

    def open(self, wait_s: float = 1.0, rounds: int = 0, known: int | None = None) -> Reply:
        known = self.known if known is None else known
        return self.write(StateWrite(NAME, BreakerState.OPEN, known, wait_s, rounds, BreakerCause.FAILURES))

    def acquire(self, ticket: str = "t", request: ProbeRequest = ONE, known: int | None = None) -> Reply:
        return self.keep(
            self.call(self.wire.acquire(NAME, self.known if known is None else known, request, ticket))
        )

    def finish(
        self, outcome: Outcome, ticket: str = "t", *, need: int = 1, version: int | None = None
    ) -> Reply:
        version = self.known if version is None else version
        return self.write(ProbeResult(NAME, ticket, 0.0, version, outcome, need, 2.0))

    def operate(self, state: BreakerState, *, again: bool = False, known: int | None = None) -> Reply:
        known = self.known if known is None else known
        return self.write(StateWrite(NAME, state, known, is_restore=again))

    def read(self, *names: str) -> dict[str, RemoteBreakerState | None]:
        keys, _ = self.wire.read(names or [NAME])
        micros = round(self.clock_s * 1e6)
        reports = self.client.eval(TIMED, len(keys), *keys, *divmod(micros, 10**6), "read")
        return parse_states(reports, names or [NAME])

    def write(self, write: Write) -> Reply:
        return self.keep(self.call(self.wire.write(write, 0, 0.0)))

    def keep(self, reports: Reply) -> Reply:
        if reports.remote is not None:
            self.known = max(self.known, reports.remote.version)
        return reports

    def word(self) -> BreakerState | None:
        found = self.read()[NAME]
        return None if found is None else found.state


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, protocol=2) as made:
        yield made


@pytest.fixture
def store(client: redis.Redis, redis_prefix: str) -> Store:
    assert SCRIPT.count(READS_TIME) == 1
    return Store(client, redis_prefix)


def test_an_opening_is_known_for_as_long_as_it_lasts(store: Store) -> None:
    assert store.word() is None
    reports = store.open(wait_s=2.0, rounds=3)
    assert reports.done
    assert reports.remote == RemoteBreakerState(
        round(START_S * 1e6), BreakerState.OPEN, 2.0, 3, BreakerCause.FAILURES
    )
    store.clock_s += 0.5
    assert store.read() == {
        NAME: RemoteBreakerState(round(START_S * 1e6), BreakerState.OPEN, 1.5, 3, BreakerCause.FAILURES)
    }
    rejected = store.acquire()
    assert (rejected.done, rejected.remote) == (False, store.read()[NAME])


def test_unaware_opener_receives_the_other_opening(store: Store) -> None:
    store.open(wait_s=2.0)
    reports = store.open(wait_s=9.0, known=0)
    assert not reports.done
    assert reports.remote is not None
    assert reports.remote.wait_s == 2.0


def test_aware_opener_opens_anew(store: Store) -> None:
    first = store.open(wait_s=2.0)
    again = store.open(wait_s=9.0)
    assert again.done
    assert first.remote is not None
    assert again.remote is not None
    assert again.remote.version > first.remote.version
    assert again.remote.wait_s == 9.0


def test_opening_wins_over_an_unknown_closing(store: Store) -> None:
    store.open(wait_s=0.0)
    store.clock_s += 1.0
    store.acquire()
    store.finish(Outcome.SUCCESS)
    assert store.word() is BreakerState.CLOSED
    assert store.open(known=1).done, "if both sides have moved, open wins"


def test_opening_waits_for_a_probe_unknown_to_its_process(store: Store) -> None:
    store.open(wait_s=0.0)
    store.clock_s += 1.0
    store.acquire()
    reports = store.open(known=1)
    assert (reports.done, reports.remote and reports.remote.state) == (False, BreakerState.HALF_OPEN)


def test_one_probe_at_a_time_until_its_lease_expires(store: Store) -> None:
    store.open(wait_s=0.0)
    first = store.acquire("1").lease
    assert first is not None
    store.clock_s += ONE.lease_s - 1e-6
    assert store.acquire("2").lease is None
    store.clock_s += 1e-6
    second = store.acquire("2").lease
    assert second is not None
    assert second.fence > first.fence
    assert not store.finish(Outcome.SUCCESS, "1").done, "it has lost its place"
    assert store.word() is BreakerState.HALF_OPEN


def test_late_result_counts_if_no_query_came_meanwhile(store: Store) -> None:
    store.open(wait_s=0.0)
    store.acquire()
    store.clock_s += 10 * ONE.lease_s
    assert store.finish(Outcome.SUCCESS).done
    assert store.word() is BreakerState.CLOSED


def test_rejected_query_writes_and_renews_nothing(client: redis.Redis, store: Store) -> None:
    store.open(wait_s=0.0)
    store.acquire("1")
    state, trials = store.wire.keys(NAME)
    for key in (state, trials):
        client.pexpire(key, 60_000)
    kept = client.hgetall(state), client.zrange(trials, 0, -1, withscores=True)
    commands = client.info("commandstats")
    for _ in range(200):
        assert store.acquire("2").lease is None
    wrote = {"hset", "zadd", "zrem", "zremrangebyscore", "pexpire", "del", "publish"}
    since = client.info("commandstats")
    for command in wrote:
        assert since.get(f"cmdstat_{command}") == commands.get(f"cmdstat_{command}"), command
    assert (client.hgetall(state), client.zrange(trials, 0, -1, withscores=True)) == kept
    assert client.pttl(state) <= 60_000
    assert client.pttl(trials) <= 60_000


@pytest.mark.parametrize("outcome", [Outcome.FAILURE, Outcome.SLOW])
def test_failed_probe_starts_a_further_round(store: Store, outcome: Outcome) -> None:
    store.open(wait_s=0.0, rounds=4)
    store.acquire()
    reports = store.finish(outcome)
    assert reports.done
    assert reports.remote is not None
    assert (reports.remote.state, reports.remote.wait_s, reports.remote.rounds) == (BreakerState.OPEN, 2.0, 5)


def test_neutral_probe_frees_its_slot_at_once(store: Store) -> None:
    store.open(wait_s=0.0)
    store.acquire("1")
    assert store.finish(Outcome.NEUTRAL, "1", version=0).done, "whatever is known of the version"
    assert store.acquire("2").lease is not None


@pytest.mark.parametrize(("threshold", "places"), [(False, 3), (True, 4)])
def test_a_round_admits_as_many_as_must_win_or_so_many_at_a_time(
    store: Store, threshold: bool, places: int
) -> None:
    """Without a threshold three trials in all; with one three at a time, until three have won."""
    request = ProbeRequest(half_open_max=3, successes_needed=3, limits_concurrent=threshold, lease_s=5.0)
    store.open(wait_s=0.0)
    tickets = [str(number) for number in range(9)]
    held = [ticket for ticket in tickets[:4] if store.acquire(ticket, request).lease]
    assert len(held) == 3
    assert store.finish(Outcome.SUCCESS, held[0], need=3).done
    held += [ticket for ticket in tickets[4:6] if store.acquire(ticket, request).lease]
    assert len(held) == places
    store.finish(Outcome.SUCCESS, held[1], need=3)
    reports = store.finish(Outcome.SUCCESS, held[2], need=3)
    assert reports.remote is not None
    assert reports.remote.state is BreakerState.CLOSED


def test_lower_probe_requirement_ends_the_wait(store: Store) -> None:
    store.open(wait_s=0.0)
    for ticket in ("1", "2"):
        store.acquire(ticket, ProbeRequest(3, 3, False, 5.0))
        store.finish(Outcome.SUCCESS, ticket, need=3)
    reports = store.acquire("3", ONE)
    assert (reports.lease, reports.remote and reports.remote.state) == (None, BreakerState.CLOSED)


def test_operator_state_yields_only_to_another(store: Store) -> None:
    assert store.operate(BreakerState.FORCED_OPEN).done
    assert not store.open().done
    assert store.acquire().lease is None
    assert store.word() is BreakerState.FORCED_OPEN
    assert store.operate(BreakerState.DISABLED, known=0).done, "also of one who has not heard of the last"
    assert store.operate(BreakerState.CLOSED).done
    found = store.read()[NAME]
    assert found is not None
    assert (found.state, found.cause) == (BreakerState.CLOSED, BreakerCause.OPERATOR)


def test_forgotten_state_is_restored_unless_a_newer_exists(store: Store) -> None:
    store.operate(BreakerState.FORCED_OPEN)
    forced = store.known
    store.operate(BreakerState.CLOSED)
    assert not store.operate(BreakerState.FORCED_OPEN, again=True, known=forced).done
    store.client.flushall()
    assert store.operate(BreakerState.FORCED_OPEN, again=True, known=forced).done


def test_lost_key_admits_one_probe_and_versions_still_rise(store: Store) -> None:
    store.open(wait_s=9.0)
    before = store.known
    store.client.flushall()
    store.clock_s -= 3600.0
    lease = store.acquire().lease
    assert lease is not None
    assert lease.version > before
    assert store.acquire("2").lease is None


def test_clock_stepping_back_extends_no_wait(store: Store) -> None:
    store.open(wait_s=1.0)
    store.clock_s -= 3600.0
    first = store.acquire("1")
    assert first.lease is not None, "it was open for longer than it was to be"
    store.clock_s -= 3600.0
    assert store.acquire("2").lease is not None, "its lease is over"
    before = store.known
    assert store.finish(Outcome.FAILURE, "2").done
    assert store.known > before


def test_keys_outlive_their_state_by_an_hour(client: redis.Redis, store: Store) -> None:
    state, trials = store.wire.keys(NAME)
    store.open(wait_s=60.0)
    assert 3_660_000 - MINUTE_MS <= client.pttl(state) <= 3_660_000
    store.clock_s += 61.0
    store.acquire()
    assert 3_602_000 - MINUTE_MS <= client.pttl(state) <= 3_602_000
    assert 0 < client.pttl(trials) <= 2_000
    store.finish(Outcome.SUCCESS)
    assert 3_600_000 - MINUTE_MS <= client.pttl(state) <= 3_600_000
    assert not client.exists(trials)


def test_operator_state_lives_while_it_is_read(client: redis.Redis, store: Store) -> None:
    (state, _), month_ms = store.wire.keys(NAME), 30 * 86_400_000
    store.operate(BreakerState.DISABLED)
    assert month_ms - MINUTE_MS <= client.pttl(state) <= month_ms
    client.pexpire(state, 60_000)
    store.read()
    assert month_ms - MINUTE_MS <= client.pttl(state) <= month_ms
    store.operate(BreakerState.CLOSED)
    client.pexpire(state, 60_000)
    store.read()
    assert client.pttl(state) <= 60_000


def test_a_foreign_value_hides_no_other_breaker(client: redis.Redis, store: Store) -> None:
    client.sadd(store.wire.keys("b")[0], "not ours")
    store.open()
    found = store.read(NAME, "b")
    assert found["b"] is None
    assert found[NAME] is not None


def test_every_change_is_published_once(client: redis.Redis, store: Store) -> None:
    with client.pubsub() as received:  # type: ignore[no-untyped-call]  # redis-py's
        received.subscribe(store.wire.channel)
        assert (received.get_message(timeout=60.0) or {})["type"] == "subscribe"
        store.open(wait_s=0.5)
        store.open(known=0)
        store.acquire()
        store.clock_s += 1.0
        store.acquire()
        store.finish(Outcome.SUCCESS)
        store.operate(BreakerState.DISABLED)
        notified = [(received.get_message(timeout=60.0) or {})["data"].decode().split() for _ in range(3)]
        assert received.get_message(timeout=0.02) is None
    assert [words[2:4] for words in notified] == [["open", "500000"], ["closed", "0"], ["disabled", "0"]]
    assert {(words[0], words[-1]) for words in notified} == {(NAME, "me")}


@dataclass
class Replica:
    """The script in Python, without keys that expire."""

    v: int = 0
    state: str = ""
    until: int = 0
    wait: int = 0
    rounds: int = 0
    won: int = 0
    fence: int = 0
    trials: dict[str, int] = field(default_factory=dict)

    def left(self, now: int) -> int:
        left = self.until - now
        return left if 0 <= left <= self.wait else 0

    def go(self, now: int, known: int, state: str, wait: int, rounds: int) -> bool:
        self.v = max(self.v + 1, known + 1, now)
        self.state, self.until, self.wait, self.rounds, self.won = state, now + wait, wait, rounds, 0
        self.trials = {}
        return True

    def open(self, now: int, known: int, wait: int, rounds: int) -> bool:
        busy = self.state == "half_open" or (self.state == "open" and self.left(now) > 0)
        if self.state in {"forced_open", "disabled"} or (self.v > known and busy):
            return False
        return self.go(now, known, "open", wait, rounds)

    def acquire(self, now: int, known: int, request: ProbeRequest, ticket: str) -> bool:
        lease = round(request.lease_s * 1e6)
        if self.state in {"closed", "forced_open", "disabled"} or (
            self.state == "open" and self.left(now) > 0
        ):
            return False
        won = 0 if self.state == "open" else self.won
        if self.v and won >= request.successes_needed:
            return self.go(now, known, "closed", 0, 0)
        live = sum(now < end <= now + 4 * lease for end in self.trials.values())
        if live + (0 if request.limits_concurrent else won) >= request.half_open_max:
            return False
        if not self.v:
            self.v = max(1, known + 1, now)
        self.state, self.until, self.wait, self.won = "half_open", now, 0, won
        self.fence = max(self.fence + 1, now)
        self.trials = {key: end for key, end in self.trials.items() if now < end <= now + 4 * lease}
        self.trials[ticket] = now + lease
        return True

    def finish(self, now: int, known: int, outcome: Outcome, need: int, ticket: str) -> bool:
        if outcome is Outcome.NEUTRAL:
            self.trials.pop(ticket, None)
            return True
        if self.v != known or ticket not in self.trials:
            return False
        if outcome is not Outcome.SUCCESS:
            return self.go(now, known, "open", 2_000_000, self.rounds + 1)
        self.won += 1
        if self.won >= need:
            return self.go(now, known, "closed", 0, 0)
        del self.trials[ticket]
        return True

    def operate(self, now: int, known: int, state: BreakerState, *, again: bool) -> bool:
        if again and self.v > known:
            return False
        return self.go(now, known, state.value, 0, 0)


REQUESTS = [ONE, ProbeRequest(2, 2, False, 1.0), ProbeRequest(1, 3, True, 0.3)]


def step(chance: random.Random, store: Store, replica: Replica) -> tuple[Reply, bool]:
    """The same command on both."""
    now = round(store.clock_s * 1e6)
    known = chance.choice([0, store.known, replica.v, replica.v])
    ticket = str(chance.randrange(4))
    request = chance.choice(REQUESTS)
    match chance.choice(["open", "acquire", "acquire", "acquire", "finish", "finish", "operate"]):
        case "open":
            wait_s, rounds = chance.choice([0.0, 0.2, 3.0]), chance.randrange(3)
            return store.open(wait_s, rounds, known), replica.open(now, known, round(wait_s * 1e6), rounds)
        case "acquire":
            return store.acquire(ticket, request, known), replica.acquire(now, known, request, ticket)
        case "finish":
            outcome = chance.choice(list(Outcome))
            reports = store.finish(outcome, ticket, need=request.successes_needed, version=known)
            return reports, replica.finish(now, known, outcome, request.successes_needed, ticket)
        case _:
            again = chance.random() < 0.5
            state = chance.choice(
                [BreakerState.CLOSED, BreakerState.CLOSED, BreakerState.FORCED_OPEN, BreakerState.DISABLED]
            )
            return store.operate(state, again=again, known=known), replica.operate(
                now, known, state, again=again
            )


def test_script_matches_its_python_reference(client: redis.Redis, redis_prefix: str) -> None:
    numbers = iter(range(10**6))

    @given(st.integers(0, 2**32))
    def same(seed: int) -> None:
        chance = random.Random(seed)
        store, replica = Store(client, f"{redis_prefix}{next(numbers)}"), Replica()
        for _ in range(30):
            store.clock_s += chance.choice([0.0, 1e-6, 0.1, 0.3, 1.0, -0.2, -100.0])
            reports, done = step(chance, store, replica)
            now = round(store.clock_s * 1e6)
            found = reports.remote
            assert reports.done == done
            if found is None:
                assert replica.v == 0
                continue
            shown = (
                replica.state if done or replica.state != "open" or replica.left(now) else found.state.value
            )
            assert (found.version, found.state.value, found.rounds) == (replica.v, shown, replica.rounds)
            assert round(found.wait_s * 1e6) == (replica.left(now) if found.state is BreakerState.OPEN else 0)
            kept: list[Any] = client.zrange(store.wire.keys(NAME)[1], 0, -1)
            assert {ticket.decode() for ticket in kept} == set(replica.trials)

    same()
