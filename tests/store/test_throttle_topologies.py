"""A whole throttle on Sentinel and on Cluster, while they lose nodes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.cluster import Cluster3
from tests.store.real_server import HASTY, PATIENTLY, Traffic, changes, connected
from tests.store.sentinel import SentinelPair
from tests.store.server import newest
from tests.store.store_checks import name

pytestmark = [pytest.mark.server, pytest.mark.slow]

MANY = "100000/minute"


class TestSentinel:
    """A primary, its replica, and who promotes it."""

    async def test_failover_delays_no_request_and_shares_new_primary(
        self, own_sentinel: SentinelPair, redis_prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "autoglm_throttle")
        site, other = [await connected(own_sentinel.url, redis_prefix, MANY, **PATIENTLY) for _ in range(2)]
        left = (await site.ask()).left
        own_sentinel.primary.command("WAIT", 1, 1000)
        async with Traffic(site) as traffic:
            await traffic.more()
            await asyncio.to_thread(own_sentinel.primary.kill)
            await site.comes(HealthState.DOWN)
            await site.comes(HealthState.UP)
            await traffic.more()
        assert await asyncio.to_thread(own_sentinel.failed_over)
        assert traffic.refused == []
        assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
        await other.connected()
        assert [(await one.ask()).left for one in (site, other)] == [left - 1, left - 2]
        assert changes(caplog)[:2] == ["store_lost", "store_recovered"]

    async def test_planned_failover_rejects_nothing(
        self, own_sentinel: SentinelPair, redis_prefix: str
    ) -> None:
        site = await connected(own_sentinel.url, redis_prefix, MANY, **PATIENTLY)
        left = (await site.ask()).left
        own_sentinel.primary.command("WAIT", 1, 1000)
        async with Traffic(site) as traffic:
            await traffic.more()
            await asyncio.to_thread(own_sentinel.sentinel.command, "SENTINEL", "FAILOVER", "mymaster")
            while not await asyncio.to_thread(own_sentinel.failed_over):
                await traffic.more(8)
            await traffic.more()
            await site.comes(HealthState.UP)
        assert traffic.refused == []
        assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
        assert (await site.ask()).left == left - 1


class TestCluster:
    """Three nodes with a third of the users each."""

    async def test_limits_are_exact_for_all_processes(
        self, redis_cluster: Cluster3, redis_prefix: str
    ) -> None:
        sites = [await connected(redis_cluster.url, redis_prefix, "5/minute", **PATIENTLY) for _ in range(3)]
        users = range(1, 41)
        decisions = [await site.crowd(*users) for site in sites for _ in range(3)]
        for user in users:
            seen = [one[user - 1] for one in decisions]
            assert [decision.allowed for decision in seen] == [True] * 5 + [False] * 4
        assert sum(site.fallbacks for site in sites) == 0
        where = [node.command("KEYS", f"{redis_prefix}:*:{name(1)[:8]}*") for node in redis_cluster.nodes]
        assert all(where), "every node counts for some"

    async def test_lost_node_rejects_and_delays_nothing(self, redis_prefix: str) -> None:
        with Cluster3(newest()) as cluster:
            site = await connected(cluster.url, redis_prefix, MANY, **HASTY, **PATIENTLY)
            async with Traffic(site, range(100, 132)) as traffic:
                await traffic.more(64)
                await asyncio.to_thread(cluster.nodes[1].kill)
                await traffic.more(320)
                assert site.store.cause is not None
                await asyncio.to_thread(cluster.nodes[1].restart)
                await asyncio.to_thread(cluster.await_whole)
                await site.comes(HealthState.UP)
                await traffic.more(64)
            assert traffic.refused == []
            assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
            before = site.fallbacks
            await site.crowd(*range(200, 264))
            assert site.fallbacks == before
