"""The server answers, but not this: no script, a replica, no memory, no rights, something foreign, late."""

from __future__ import annotations

import asyncio
import logging

import pytest

from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.running_time import GRAIN_S
from autoglm_throttle.store.script import RIGHTS
from autoglm_throttle.types import Reason
from tests.store.polling import HANG_S, eventually
from tests.store.proxy import SlowProxy
from tests.store.real_server import (
    DEADLINE_S,
    HASTY,
    PATIENTLY,
    PROMPTLY,
    Site,
    Traffic,
    changes,
    connected,
    said,
)
from tests.store.server import RedisServer, free_port
from tests.store.store_checks import name

pytestmark = pytest.mark.server

MANY = "100000/minute"
UNHURRIED = {**HASTY, **PATIENTLY}


async def test_script_flush_under_traffic_causes_no_error(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    site = await connected(redis_server.url, redis_prefix, MANY, **PATIENTLY)
    before = site.fallbacks
    async with Traffic(site) as traffic:
        for _ in range(5):
            await traffic.more()
            await asyncio.to_thread(redis_server.command, "SCRIPT", "FLUSH")
        await traffic.more()
    assert traffic.refused == []
    assert site.fallbacks == before


async def test_server_turned_replica_is_avoided_until_primary(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site = await connected(own_server.url, redis_prefix, MANY, **UNHURRIED)
    left = (await site.ask()).left
    async with Traffic(site) as traffic:
        await traffic.more()
        await asyncio.to_thread(own_server.command, "REPLICAOF", "127.0.0.1", free_port())
        await site.comes(HealthState.DOWN)
        assert site.store.cause is StoreErrorKind.READONLY
        assert [(await site.ask(2)).left for _ in range(3)] == [99_999, 99_998, 99_997], "local"
        await site.probes()
        assert site.store.cause is StoreErrorKind.READONLY, "a probe finds a replica, too"
        await asyncio.to_thread(own_server.command, "REPLICAOF", "NO", "ONE")
        await site.comes(HealthState.UP)
    assert traffic.refused == []
    assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
    assert (await site.ask()).left == left - 1
    assert changes(caplog) == ["store_lost", "store_recovered"]
    assert "readonly" in said(caplog, "store_lost")[0]


async def test_a_server_without_memory_is_left_alone_until_it_has_some(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = await connected(own_server.url, redis_prefix, MANY, **UNHURRIED)
    left = (await site.ask()).left
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    assert [(await site.ask(2)).decision.allowed for _ in range(5)] == [True] * 5
    assert (site.state, site.store.cause) == (HealthState.DOWN, StoreErrorKind.FULL)
    await site.probes()
    assert (await site.ask(2)).decision.allowed
    assert site.store.cause is StoreErrorKind.FULL, "a probe finds no memory, too"
    own_server.command("CONFIG", "SET", "maxmemory", 0)
    await site.comes(HealthState.UP)
    assert (await site.ask()).left == left - 1
    assert len(said(caplog, "store_lost")) == 1


async def test_a_server_that_is_slow_within_the_deadline_is_waited_for(
    slow_proxy: SlowProxy, redis_prefix: str
) -> None:
    site = await connected(slow_proxy.url, redis_prefix, MANY, **PATIENTLY)
    before = site.fallbacks
    slow_proxy.delay_s = 0.008
    asked = [await site.ask() for _ in range(40)]
    assert min(one.took_s for one in asked) >= 0.008
    assert site.fallbacks == before
    assert site.state is HealthState.UP


class LateLoop:
    """Adds up by how many seconds the event loop runs its timers late, if by more than `GRAIN_S`."""

    def __init__(self) -> None:
        self.total_s = 0.0

    async def __aenter__(self) -> LateLoop:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late_s = loop.time() - due_s
            self.total_s += late_s if late_s > GRAIN_S else 0.0


@pytest.mark.parametrize(
    "delay_s", [1.3 * DEADLINE_S, pytest.param(2.5 * DEADLINE_S, marks=pytest.mark.slow)]
)
async def test_slow_server_is_avoided_until_fast(
    slow_proxy: SlowProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture, delay_s: float
) -> None:
    # Connection and replies have their usual limits: with a minute for each, a probe lasted as long as that.
    site = await connected(slow_proxy.url, redis_prefix, MANY, **HASTY, redis_deadline_s=DEADLINE_S)
    async with Traffic(site) as traffic, LateLoop() as late:
        await traffic.more()
        slow_proxy.delay_s = delay_s
        await eventually(lambda: site.state is HealthState.DOWN, "the store is down")
        for _ in range(2):
            await eventually(lambda: site.state is HealthState.PROBING, "a probe has begun")
            await eventually(lambda: site.state is HealthState.DOWN, "the probe has failed")
        # A deadline stands still while the loop is late: only then may a probe have had its answer in time.
        excused = late.total_s / (delay_s - DEADLINE_S)
        assert len(said(caplog, "store_lost")) <= 1 + excused, "a probe waits no longer than a request"
        slow_proxy.delay_s = 0.0
        await eventually(lambda: site.state is HealthState.UP, "the store is up")
        await traffic.more()
    assert traffic.refused == []
    assert site.store.fallbacks[StoreErrorKind.TIMEOUT] >= 3
    assert (await site.ask()).shared


async def test_dead_connections_block_no_request_after_new_ones(
    slow_proxy: SlowProxy, redis_prefix: str
) -> None:
    site = await connected(slow_proxy.url, redis_prefix, MANY, **HASTY, **PROMPTLY)
    slow_proxy.delay_s = HANG_S
    await site.comes(HealthState.DOWN)
    slow_proxy.delay_s = 0.0  # for the replies that are still to come
    await site.comes(HealthState.UP)
    asked = [await site.ask() for _ in range(20)]
    assert sum(one.shared for one in asked) >= 18
    assert site.state is HealthState.UP


class TestRights:
    """The server knows its users, and this one may not do all that is needed."""

    async def test_named_are_enough(self, restricted: str, redis_prefix: str) -> None:
        site = await connected(restricted, redis_prefix, MANY, **PATIENTLY)
        assert (await site.ask()).left == (await site.ask()).left + 1
        assert site.state is HealthState.UP

    async def test_missing_right_is_logged_once_and_process_runs_locally(
        self,
        redis_server: RedisServer,
        restricted: str,
        redis_prefix: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        site = await connected(restricted, redis_prefix, "5/hour", **UNHURRIED)
        redis_server.command("ACL", "SETUSER", redis_prefix, "-lpush")
        decisions = [(await site.ask()).decision for _ in range(8)]
        assert [decision.reason for decision in decisions] == [Reason.OK] * 5 + [Reason.USER] * 3
        assert (site.state, site.store.cause) == (HealthState.DOWN, StoreErrorKind.FORBIDDEN)
        await site.probes()
        assert site.store.cause is StoreErrorKind.FORBIDDEN
        assert len([record for record in caplog.records if RIGHTS in record.getMessage()]) == 1
        assert len(said(caplog, "store_lost")) == 1
        redis_server.command("ACL", "SETUSER", redis_prefix, "+lpush")
        await site.comes(HealthState.UP)

    async def test_a_wrong_password_is_local_at_once(
        self, redis_server: RedisServer, restricted: str, redis_prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        site = Site(restricted.replace(":pw@", ":wrong-secret@"), redis_prefix, "5/hour", **PATIENTLY)
        decisions = [(await site.ask()).decision for _ in range(8)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 3
        assert (site.state, site.store.cause) == (HealthState.DOWN, StoreErrorKind.FORBIDDEN)
        assert len(said(caplog, "store_lost")) == 1
        assert not any("wrong-secret" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("limit", ["5/hour", "5000/hour"])
async def test_foreign_value_affects_only_its_user(
    redis_server: RedisServer, redis_prefix: str, limit: str
) -> None:
    site = await connected(redis_server.url, redis_prefix, limit, **PATIENTLY)
    most = int(limit.partition("/")[0])
    await site.ask(3)
    (mine,) = redis_server.command("KEYS", f"{redis_prefix}:*{name(3)}")
    redis_server.command("DEL", mine)
    redis_server.command("SADD", mine, "not ours")
    for used in range(1, 4):
        decisions = await site.crowd(1, 2, 3, 4)
        assert [decision.remaining for decision in decisions[:2] + decisions[3:]] == [most - used] * 3
        assert decisions[2].allowed
    assert site.store.fallbacks[StoreErrorKind.FOREIGN] == 3
    assert site.state is HealthState.UP
    assert redis_server.command("SMEMBERS", mine) == ["not ours"]
    if most == 5:
        assert [(await site.ask(3)).decision.allowed for _ in range(4)] == [True, False, False, False]
