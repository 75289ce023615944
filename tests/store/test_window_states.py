"""The server answers, but not this: no script, a replica, no memory, something foreign."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.server import RedisServer, free_port
from tests.store.store_checks import LIMIT, ask, comes_back, key, left, window_at

pytestmark = pytest.mark.server


async def test_script_flush_under_traffic_causes_no_error(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(redis_server.url, redis_prefix)
    seen: list[int] = []
    for _ in range(10):
        waves = [asyncio.gather(*(left(window, 1, limit=1000) for _ in range(20))) for _ in range(2)]
        await asyncio.to_thread(redis_server.command, "SCRIPT", "FLUSH")
        for wave in waves:
            seen += await wave
    assert sorted(seen) == list(range(1000 - 400, 1000)), "each unit was spent once"


async def test_a_server_that_becomes_a_replica_is_left_and_found_again(
    each_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(each_server.url, redis_prefix)
    assert await left(window, 1) == LIMIT - 1
    each_server.command("REPLICAOF", "127.0.0.1", free_port())
    for _ in range(3):
        assert await ask(window, 1) is StoreErrorKind.READONLY
    each_server.command("REPLICAOF", "NO", "ONE")
    await comes_back(window)
    assert await left(window, 1) == LIMIT - 2


async def test_a_server_without_memory_says_so_until_it_has_some(
    each_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(each_server.url, redis_prefix)
    assert await left(window, 1) == LIMIT - 1
    each_server.command("CONFIG", "SET", "maxmemory", 1)
    assert await asyncio.gather(*(ask(window, user) for user in range(1, 5))) == [StoreErrorKind.FULL] * 4
    each_server.command("CONFIG", "SET", "maxmemory", 0)
    assert await left(window, 1) == LIMIT - 2, "nothing was spent meanwhile"


async def test_a_foreign_value_concerns_its_own_user_alone(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(redis_server.url, redis_prefix)
    redis_server.command("SADD", key(redis_prefix, 3), "not ours")
    answers = await asyncio.gather(*(ask(window, user) for user in range(1, 6)))
    assert answers.pop(2) is StoreErrorKind.FOREIGN
    assert [answer[:2] for answer in answers if not isinstance(answer, StoreErrorKind)] == [
        [0, LIMIT - 1]
    ] * 4
    assert redis_server.command("SMEMBERS", key(redis_prefix, 3)) == ["not ours"]
