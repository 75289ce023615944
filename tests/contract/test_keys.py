"""What stands under the keys: only ours, never for ever, and small."""

from __future__ import annotations

import re
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from hypothesis import given

from autoglm_throttle.store.protocol import WindowProtocol, script
from autoglm_throttle.types import UNITS_AT_MOST
from tests.contract.script_store import SECOND, START, ScriptStore, limit, refund_of
from tests.contract.test_script_is_the_reference import Player
from tests.contract.traces import Step, traces
from tests.store.server import RedisServer

RIGHTS = {"TIME", "LINDEX", "LLEN", "LPUSH", "LREM", "RPOP", "LTRIM", "DEL", "GET", "SET", "PEXPIRE"}

SLOW_US = 10 * SECOND
"""So long a busy machine may take between two lines of a test."""

Plant = Callable[[Any, str], Any]

STRANGE: dict[str, Plant] = {
    "hash": lambda client, key: client.hset(key, "field", "value"),
    "set": lambda client, key: client.sadd(key, "member"),
    "sorted set": lambda client, key: client.zadd(key, {"member": 1.0}),
    "text": lambda client, key: client.set(key, "hello"),
    "long text": lambda client, key: client.set(key, "B" * 197),
    "text of the right length": lambda client, key: client.set(key, "x" * 71),
    "ours, cut off": lambda client, key: client.set(key, b"\xf9" + bytes(9)),
    "ours, and a half": lambda client, key: client.set(key, b"\xfa" + bytes(12)),
    "a mark too far": lambda client, key: client.set(key, b"\xfc" + bytes(13)),
    "as it was before": lambda client, key: client.set(key, b"B" + bytes(12) + b"\x01"),
    "words": lambda client, key: client.rpush(key, "some", "words"),
}


@given(trace=traces)
def test_every_key_is_declared_and_dies_when_its_units_have_left(
    store: ScriptStore, trace: Sequence[Step]
) -> None:
    player = Player(store)
    declared: set[str] = set()
    latest = START
    for step in trace:
        before = len(player.allowed)
        player.play(step)
        latest = max(latest, player.clock)
        spent = [ask for ask, _ in player.allowed[before:] if ask.charges[0].units]
        for ask in spent:
            for key in ask.keys:
                # By the given clock, which goes back; the one by which the server lets keys die does not.
                lasts_us = player.reference.lasts_us(key, latest)
                assert store.client.pttl(key) * 1000 > lasts_us - SLOW_US or not lasts_us
        declared.update(key for ask, _ in player.allowed for key in ask.keys)
    standing = {key.decode() for key in store.client.keys(f"{store.prefix}:*")}
    assert standing <= declared
    assert all(store.client.pttl(key) > 0 for key in standing)


@pytest.mark.parametrize("exact", [True, False])
def test_a_key_outlives_its_newest_unit_by_an_eighth_of_its_window(store: ScriptStore, exact: bool) -> None:
    store.fresh()
    asks = [store.ask((limit(5, exact=exact),), user=f"{user:016x}") for user in range(100)]
    clock, _ = store.call_now(asks)
    with store.client.pipeline() as pipe:
        pipe.time()
        for ask in asks:
            pipe.pttl(ask.keys[0])
        pipe.time()
        (before_s, before_us), *left_ms, (after_s, after_us) = pipe.execute()
    part_us = 60 * SECOND // 8
    leaves_us = (clock // part_us + 1) * part_us + 60 * SECOND if exact else (clock // SECOND + 61) * SECOND
    assert min(left_ms) * 1000 + after_s * SECOND + after_us >= leaves_us
    assert max(left_ms) * 1000 + before_s * SECOND + before_us <= leaves_us + SLOW_US


def test_a_life_is_renewed_once_in_an_eighth_of_the_window(store: ScriptStore) -> None:
    store.fresh()
    limits, part_us = (limit(9),), 60 * SECOND // 8
    clock = START // part_us * part_us
    key = store.ask(limits).keys[0]
    store.hit(limits, clock)
    for earlier_us, units, renewed in ((1, 1, False), (1, 2, False), (0, 1, True), (0, 2, True)):
        store.client.pexpire(key, 30_000)  # as if half a minute had passed
        store.hit(limits, clock + part_us - earlier_us, units)
        assert (store.client.pttl(key) > 60_000) is renewed
        clock += 0 if earlier_us else part_us


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("exact", [True, False])
def test_something_else_under_a_key_is_left_alone(
    store: ScriptStore, fake_store: ScriptStore, exact: bool, strange: str
) -> None:
    for each in (store, fake_store):
        each.fresh()
        limits = (limit(5, exact=exact),)
        asks = [each.ask(limits, user=user) for user in "abc"]
        key = asks[1].keys[0]
        STRANGE[strange](each.client, key)
        before = each.client.dump(key)
        both = each.wire.build_check((*asks[0].charges, *asks[1].charges))
        answers = each.call([*asks, both, asks[0]], START)
        assert [answer[0] for answer in answers] == [0, -2, 0, 0, 0]
        assert answers[1] == [-2, 5, 0, 0]
        assert answers[3] == [0, 4, 60 * SECOND + (0 if exact else SECOND), answers[0][3], *answers[1]]
        assert answers[4][1] == 3
        refunds = [refund_of(asks[1], answers[0], 3), each.wire.build_refund(asks[0], answers[0])]
        moved = each.call(refunds, START)
        if not (exact and strange == "words"):
            assert moved == [[-2], [1]]
        assert each.client.dump(key) == before


def test_a_right_that_is_missing_is_no_foreign_key(store: ScriptStore, redis_server: RedisServer) -> None:
    store.fresh()
    for exact, command in ((True, "lindex"), (False, "get")):
        store.client.acl_setuser(
            "half", enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{command}"], reset=True
        )
        try:
            with redis.Redis(port=redis_server.port, username="half", password="x") as client:
                keys, arguments = store.wire.encode([store.ask((limit(5, exact=exact),))])
                with pytest.raises(redis.RedisError, match=r"can't run this command|NOPERM|no permissions"):
                    client.eval(script(), len(keys), *keys, *arguments)
        finally:
            store.client.acl_deluser("half")


def test_a_list_is_small(store: ScriptStore) -> None:
    store.wire = WindowProtocol("athr", "default", 16)
    users = [secrets.token_hex(8) for _ in range(9)]
    for step in range(61):
        asks = [store.ask((limit(100),), 1 if step < 60 else 40, user) for user in users]
        store.call(asks, START + step * SECOND)
    sizes = [store.client.memory_usage(ask.keys[0], samples=0) for ask in asks]
    assert statistics.median(sizes) <= ROOM * 900  # an allocator may give one of them a larger piece


ROOM = 1.1
"""Builds of one server differ by their allocators: by so much at most."""
MANY = 1500
"""Users: what the server holds besides them is little for each."""


@pytest.mark.parametrize(
    ("most", "bytes_at_most"),
    [
        (5000, 300),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(65_535, 300), (60 * 65_535, 300)]),
        pytest.param(UNITS_AT_MOST, 365, marks=pytest.mark.slow),
    ],
)
def test_sixty_parts_are_small(each_server: RedisServer, most: int, bytes_at_most: int) -> None:
    """All that a server uses for a user: tables and the rounding of its allocator, too.

    It is what a server that forgets them has more; scripts and connections leave their own traces before.
    """
    with redis.Redis.from_url(each_server.url) as client:
        store = ScriptStore(client, "athr")
        limits = (limit(most, exact=False),)
        users = [f"{user:016x}" for user in range(MANY)]
        each, last = ([store.ask(limits, units, user) for user in users] for units in divmod(most, 60))
        for step in range(61):
            asks = each if step < 60 else last
            for start in range(0, MANY, 500):
                store.call(asks[start : start + 500], START + step * SECOND)
        assert client.dbsize() == MANY
        assert store.call(asks[-1:], START + 60 * SECOND)[0][1] == 0
    full = settled(each_server)
    each_server.command("FLUSHALL", "SYNC")
    assert (full - settled(each_server)) / MANY <= ROOM * bytes_at_most


def settled(server: RedisServer) -> int:
    """Bytes in use once all clients but the one that asks are gone, and no table is being moved."""
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(seen) < 5 or len(set(seen[-5:])) > 1 or int(server.info("clients")["connected_clients"]) > 1:
        assert time.monotonic() < deadline, f"the server does not come to rest: {seen[-5:]}"
        seen.append(int(server.info("memory")["used_memory"]))
    return seen[-1]


def test_script_uses_permitted_commands_and_given_keys_only() -> None:
    calls = re.findall(r"(?:redis\.call|\bcall|\btry)\('(\w+)'(?:, (\w+))?", script())
    assert {command for command, _ in calls} == RIGHTS
    assert {argument for command, argument in calls if command != "TIME"} == {"key"}


def test_the_script_runs_on_every_server() -> None:
    text = script()
    assert not text.startswith("#!")
    assert "struct." not in text
    assert "cjson" not in text
    assert re.findall(r"tostring\(.*?\)", text) == ["tostring(found.err)"]
    assert text.count("'TIME'") == 1
