"""Cluster, Sentinel, TLS, a socket of the file system: the same window everywhere."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.cluster import Cluster3
from tests.store.proxy import AUTHORITY, SlowProxy
from tests.store.sentinel import SentinelPair
from tests.store.server import RedisServer, newest
from tests.store.store_checks import LIMIT, answered, ask, comes_back, left, prompt_window, window_at

pytestmark = [pytest.mark.server, pytest.mark.slow]


class TestCluster:
    """Three nodes, each with a third of the keys."""

    async def test_cluster_answers_many_callers_from_all_nodes(
        self, redis_cluster: Cluster3, redis_prefix: str
    ) -> None:
        window = window_at(redis_cluster.url, redis_prefix)
        assert await left(window, 0) == LIMIT - 1
        for used in (1, 2, 3):
            assert (
                await asyncio.gather(*(left(window, user) for user in range(1, 200))) == [LIMIT - used] * 199
            )
        found = [node.command("KEYS", f"{redis_prefix}:*") for node in redis_cluster.nodes]
        assert sum(len(keys) for keys in found) == 200
        assert all(found)

    async def test_a_script_that_is_flushed_on_one_node_fails_no_request(
        self, redis_cluster: Cluster3, redis_prefix: str
    ) -> None:
        window = window_at(redis_cluster.url, redis_prefix)
        for used in (1, 2, 3):
            assert await asyncio.gather(*(left(window, user) for user in range(100))) == [LIMIT - used] * 100
            redis_cluster.nodes[used - 1].command("SCRIPT", "FLUSH")

    async def test_a_lost_node_is_trouble_and_never_an_error(self, redis_prefix: str) -> None:
        with Cluster3(newest()) as cluster:
            window = await prompt_window(cluster.url, redis_prefix)
            users = range(64)
            assert await asyncio.gather(*(left(window, user) for user in users)) == [LIMIT - 1] * 64
            cluster.nodes[1].kill()
            for _ in range(3):
                found = await asyncio.gather(*(ask(window, user) for user in users))
                assert any(isinstance(answer, StoreErrorKind) for answer in found)
            cluster.nodes[1].restart()
            await asyncio.to_thread(cluster.await_whole)
            await comes_back(window)
            found = await asyncio.gather(*(ask(window, user) for user in users))
            assert [answer for answer in found if isinstance(answer, StoreErrorKind)] == []


class TestSentinel:
    """A primary and what takes over from it."""

    async def test_failover_continues_on_new_primary_with_state(
        self, own_sentinel: SentinelPair, redis_prefix: str
    ) -> None:
        window = await prompt_window(own_sentinel.url, redis_prefix)
        assert await left(window, 1) == LIMIT - 1
        replicated = own_sentinel.primary.command("WAIT", 1, 1000)
        assert replicated == 1
        own_sentinel.primary.kill()
        while isinstance(await ask(window, 1), StoreErrorKind):
            await comes_back(window)
        assert await left(window, 1) < LIMIT - 1, "what was spent before is known to the new primary"
        assert own_sentinel.failed_over()

    async def test_a_planned_failover_is_followed_from_a_live_connection(
        self, own_sentinel: SentinelPair, redis_prefix: str
    ) -> None:
        window = await prompt_window(own_sentinel.url, redis_prefix)
        assert await left(window, 1) == LIMIT - 1
        own_sentinel.primary.command("WAIT", 1, 1000)
        own_sentinel.sentinel.command("SENTINEL", "FAILOVER", "mymaster")
        while not await asyncio.to_thread(own_sentinel.failed_over):
            await ask(window, 1, units=0)
        await answered(window)
        assert await left(window, 1) == LIMIT - 2


async def test_tls_verifies_the_server(
    tls_proxy: SlowProxy, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = window_at(tls_proxy.url, redis_prefix)
    assert await window.probe() is None
    assert await left(window, 1) == LIMIT - 1
    stranger = window_at(tls_proxy.url.partition("?")[0], redis_prefix)
    assert isinstance(await ask(stranger, 1), StoreErrorKind)
    monkeypatch.setenv("SSL_CERT_FILE", str(AUTHORITY))
    assert await left(window_at(tls_proxy.url.partition("?")[0], redis_prefix), 1) == LIMIT - 2


async def test_a_socket_of_the_file_system_is_as_good(redis_server: RedisServer, redis_prefix: str) -> None:
    assert await left(window_at(redis_server.unix_url, redis_prefix), 1) == LIMIT - 1
    assert await left(window_at(redis_server.url, redis_prefix), 1) == LIMIT - 2
