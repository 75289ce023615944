"""Token limits of several processes on real servers: exact, also when a process is killed or the store is."""

from __future__ import annotations

import pytest

from autoglm_throttle import Demand
from autoglm_throttle.store.health import HealthState
from tests.store.checking_processes import Crowd
from tests.store.cluster import Cluster3
from tests.store.polling import eventually
from tests.store.real_server import HASTY
from tests.store.server import RedisServer
from tests.store.store_checks import name
from tests.store.token_processes import reserved, settle, token_site

pytestmark = pytest.mark.server

LIMIT = "4000/minute"
TOKENS = 40


@pytest.mark.slow
def test_four_processes_reserve_exactly_the_limit_and_share_what_is_given_back(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    job = {"url": redis_server.url, "prefix": redis_prefix, "limit": "4000/hour", "tokens": TOKENS}
    with Crowd(4, "tests.store.token_processes") as crowd:
        half_used = sum(crowd(**job, asks=32, used=TOKENS // 2))
        assert 100 <= half_used <= 128
        assert sum(crowd(**job, asks=64, used=None)) == (4000 - half_used * TOKENS // 2) // TOKENS
        assert sum(crowd(**job, asks=4, used=None)) == 0


async def test_tokens_of_a_killed_process_stay_spent(redis_server: RedisServer, redis_prefix: str) -> None:
    with Crowd(1, "tests.store.token_processes") as crowd:
        job = {"url": redis_server.url, "prefix": redis_prefix, "limit": LIMIT, "tokens": TOKENS}
        assert crowd(**job, asks=99, used=None) == [99]
    site = await token_site(redis_server.url, redis_prefix, LIMIT).connected()
    assert [await reserved(site, TOKENS) is not None for _ in range(2)] == [True, False]


async def test_ten_million_tokens_are_counted_in_one_step(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    site = await token_site(redis_server.url, redis_prefix, "16000000/hour").connected()
    large, small = await reserved(site, 10_000_000), await reserved(site, 6_000_000)
    assert large is not None
    assert small is not None
    assert await reserved(site, 1) is None
    settle(site, large, 9_999_999)
    settle(site, large, 0)
    await site.quiet()
    assert await reserved(site, 2) is None
    assert await reserved(site, 1) is not None
    settle(site, small, 16_000_000)  # a part of the window counts no more than 2 ** 24 - 1
    await site.quiet()
    assert await reserved(site, 1) is None


async def test_settlement_of_a_lost_store_is_counted(own_server: RedisServer, redis_prefix: str) -> None:
    site = await token_site(own_server.url, redis_prefix, LIMIT, **HASTY).connected()
    tickets = [await reserved(site, TOKENS) for _ in range(2)]
    own_server.kill()
    for ticket in tickets:
        assert ticket is not None
        settle(site, ticket, 0)
    await eventually(lambda: site.store.stats.lost == 2, "both are counted")
    own_server.restart()
    await site.comes(HealthState.UP)
    ticket = await reserved(site, TOKENS)
    assert ticket is not None
    settle(site, ticket, TOKENS)
    await site.quiet()
    assert site.store.stats.lost == 2


async def test_user_and_address_on_different_nodes_are_settled(
    redis_cluster: Cluster3, redis_prefix: str
) -> None:
    site = await token_site(redis_cluster.url, redis_prefix, "100/minute", address_factor=2).connected()
    for user in range(1, 4):
        ticket = await reserved(site, 100, Demand(user=name(user), address=name(99)))
        assert ticket is not None
        settle(site, ticket, 49)
        await site.quiet()
    assert await reserved(site, 54, Demand(user=name(5), address=name(99))) is None
    assert await reserved(site, 53, Demand(user=name(5), address=name(99))) is not None
    assert await reserved(site, 52, Demand(user=name(3))) is None
    assert await reserved(site, 51, Demand(user=name(3))) is not None
    assert await reserved(site, 47, Demand(user=name(5))) is not None
    assert site.fallbacks == 0
