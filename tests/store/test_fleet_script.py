"""``fleet.lua`` on real servers and on the double, against its reference in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.client import TIMEOUT_S, RedisClients
from autoglm_throttle.store.fleet import fleet_keys
from tests.store.bucket_store import MICRO, BucketStore
from tests.store.cluster import Cluster3
from tests.store.server import RedisServer

SCRIPT = resources.files("autoglm_throttle.store").joinpath("fleet.lua").read_text("utf-8")
TIMED = SCRIPT.replace("redis.call('TIME')", "{ KEYS[3], KEYS[4] }")
"""The same with the clock as two more arguments."""
LIVES_US = 15_000_000
START_US = 1_800_000_000_000_000


def timed(
    client: Any, keys: tuple[str, str], clock_us: int, member: str, lives_us: int, figures: list[int]
) -> Any:
    seconds, micros = divmod(clock_us, MICRO)
    return client.eval(TIMED, 4, *keys, seconds, micros, member, lives_us, *figures)


def test_the_clock_is_read_once() -> None:
    assert SCRIPT.count("'TIME'") == 1
    assert "time = { KEYS" in TIMED


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, protocol=2) as made:
        yield made


def drawn(chance: random.Random) -> list[int]:
    figures = []
    for _ in range(3):
        rate = chance.choice([0, 1, 333_333, 5 * MICRO, 100 * MICRO, 1000 * MICRO])
        burst = chance.choice([MICRO, 20 * MICRO, 100_500_000, 1000 * MICRO])
        need = chance.choice([0, 0, 250_000, MICRO, 30 * MICRO])
        want = need + chance.choice([0, MICRO, 50 * MICRO])
        back = chance.choice([0, 0, 1, 7 * MICRO, -3 * MICRO, -2000 * MICRO])
        figures += [rate, burst, want, need, back]
    return figures


def same(client: Any, keys: tuple[str, str], seed: int, calls: int) -> None:
    """The same trace on the script and on its twin; every answer must be equal."""
    chance = random.Random(seed)
    twin = BucketStore()
    twin.clock_us = START_US
    for _ in range(calls):
        twin.clock_us += chance.choice(
            [0, 1, 999, 10_000, 1_300_000, 16_000_000, -1, -2_000_000, -80_000_000]
        )
        member, lives = f"m{chance.randrange(4)}", chance.choice([LIVES_US, LIVES_US, LIVES_US, 0])
        figures = drawn(chance)
        said = timed(client, keys, twin.clock_us, member, lives, figures)
        assert said == twin.call(member, lives, figures)


@pytest.mark.parametrize("seed", range(4))
def test_script_and_twin_agree_on_real_servers(client: redis.Redis, redis_prefix: str, seed: int) -> None:
    same(client, (f"{redis_prefix}:{{fleet}}:m", f"{redis_prefix}:{{fleet}}:b"), seed, 150)


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_script_and_twin_agree_on_the_double(seed: int) -> None:
    same(fakeredis.FakeRedis(), ("{fleet}:m", "{fleet}:b"), seed, 20)


def plain(want: int = 0, back: int = 0) -> list[int]:
    return [100 * MICRO, 100 * MICRO, want, 0, back] * 3


@pytest.fixture
def call(client: redis.Redis, redis_prefix: str) -> Callable[..., list[int]]:
    keys = (f"{redis_prefix}:{{fleet}}:members", f"{redis_prefix}:{{fleet}}:buckets")

    def run(member: str, figures: list[int], lives_us: int = LIVES_US) -> list[int]:
        reply: list[int] = client.eval(SCRIPT, 2, *keys, member, lives_us, *figures)
        return reply

    return run


def test_every_key_ends_by_itself(
    client: redis.Redis, redis_prefix: str, call: Callable[..., list[int]]
) -> None:
    call("a", plain())
    left = {key: client.pttl(key) for key in client.keys(f"{redis_prefix}*")}
    assert len(left) == 2
    assert all(ms > 0 for ms in left.values())
    members, buckets = (
        f"{redis_prefix}:{{fleet}}:members".encode(),
        f"{redis_prefix}:{{fleet}}:buckets".encode(),
    )
    assert left[members] <= 60_000
    assert 3_590_000 <= left[buckets] <= 3_600_000
    call("a", [1, 9000 * MICRO, 0, 0, -9000 * MICRO] * 3)
    assert client.pttl(buckets) > 3_600_000, "one that fills slowly is kept until it is full"


def test_leaving_member_is_removed_at_once(call: Callable[..., list[int]]) -> None:
    assert [call(name, plain())[1] for name in "abcb"] == [1, 2, 3, 3]
    assert call("b", plain(), 0)[1] == 2
    assert call("a", plain())[1] == 2


def test_a_clock_that_goes_back_does_not_keep_the_dead(client: redis.Redis, redis_prefix: str) -> None:
    keys = (f"{redis_prefix}:{{fleet}}:m", f"{redis_prefix}:{{fleet}}:b")
    timed(client, keys, START_US + 3_600_000_000, "dead", LIVES_US, plain())
    assert timed(client, keys, START_US, "living", LIVES_US, plain())[1] == 1


def test_unneeded_draw_is_at_most_half(call: Callable[..., list[int]]) -> None:
    assert call("a", plain(80 * MICRO))[2:4] == [50 * MICRO, 50 * MICRO]


def test_something_else_in_the_hash_is_a_bucket_that_is_full(
    client: redis.Redis, redis_prefix: str, call: Callable[..., list[int]]
) -> None:
    client.hset(f"{redis_prefix}:{{fleet}}:buckets", mapping={"0": "x", "1": "-1 2", "2": ""})
    assert call("a", plain())[2:] == [0, 100 * MICRO] * 3


def test_both_keys_lie_in_one_slot_of_a_cluster(redis_cluster: Cluster3, redis_prefix: str) -> None:
    settings = StoreSettings(redis_url=SecretStr(redis_cluster.url), redis_prefix=redis_prefix, service="s")
    keys = fleet_keys(settings)
    client: Any = RedisClients(settings).sync(TIMEOUT_S)
    try:
        assert client.eval(SCRIPT, 2, *keys, "a", LIVES_US, *plain())[1] == 1
    finally:
        client.close()
