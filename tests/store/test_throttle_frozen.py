"""A throttle on a frozen server: it takes every byte and answers none."""

from __future__ import annotations

import asyncio
import logging

import pytest

from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import Reason
from tests.store.polling import HANG_S
from tests.store.real_server import DEADLINE_S, PROMPTLY, Site, Traffic, changes, connected, said
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

MANY = "100000/minute"


async def test_only_three_requests_wait_for_frozen_server(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site, other = [await connected(own_server.url, redis_prefix, MANY, **PROMPTLY) for _ in range(2)]
    before = (await site.ask()).left
    own_server.pause()
    first = [await site.ask() for _ in range(3)]
    asked_for = site.store.stats.sent
    then = [await site.ask() for _ in range(200)]
    assert all(asked.decision.allowed for asked in first + then)
    assert all(asked.took_s >= DEADLINE_S - 0.002 for asked in first), "the deadline is used"
    assert [asked.waited for asked in first + then] == [True] * 3 + [False] * 200
    # On a slow machine the first probe may be on its way by now.
    assert site.store.stats.sent <= asked_for + 1
    assert site.state in {HealthState.DOWN, HealthState.PROBING}
    assert site.store.cause is StoreErrorKind.TIMEOUT
    own_server.resume()
    await site.comes(HealthState.UP)
    assert (await site.ask()).shared
    assert (await other.ask()).left == (await site.ask()).left + 1, "one count again"
    assert before - 8 <= (await site.ask()).left <= before - 4, "no local decision is replayed"
    assert changes(caplog) == ["store_lost", "store_recovered"]
    assert "timeout" in said(caplog, "store_lost")[0]


async def test_many_callers_wait_one_deadline_at_most(own_server: RedisServer, redis_prefix: str) -> None:
    site = await connected(own_server.url, redis_prefix, MANY, **PROMPTLY)
    own_server.pause()
    crowd = await asyncio.gather(*(site.ask(user) for user in range(1, 300)))
    assert all(asked.decision.allowed for asked in crowd)
    assert max(asked.took_s for asked in crowd) < HANG_S / 2, "by its deadline, not by that of a connection"
    assert site.fallbacks == 299
    # Of a slow machine's callers some come after the first deadline: they find the store lost already.
    assert site.store.fallbacks[StoreErrorKind.TIMEOUT] >= 3


async def test_repeated_freezes_under_traffic(own_server: RedisServer, redis_prefix: str) -> None:
    site = await connected(own_server.url, redis_prefix, MANY, **PROMPTLY, redis_probe_s=0.2)
    async with Traffic(site) as traffic:
        for _ in range(2):
            await traffic.more()
            own_server.pause()
            await site.comes(HealthState.DOWN)
            await traffic.more()
            own_server.resume()
            await site.comes(HealthState.UP)
    assert traffic.refused == []


async def test_each_process_keeps_share_of_the_remaining(own_server: RedisServer, redis_prefix: str) -> None:
    sites = [
        await connected(own_server.url, redis_prefix, "40/hour", workers=4, **PROMPTLY) for _ in range(4)
    ]
    seen = [await site.ask(1) for site in sites for _ in range(5)]
    assert [asked.left for asked in seen] == list(range(39, 19, -1))
    own_server.pause()
    await asyncio.gather(*(site.comes(HealthState.DOWN, user=9) for site in sites))
    admitted: dict[int, list[int]] = {1: [], 2: []}
    for site in sites:
        for user, counts in admitted.items():
            verdicts = [(await site.ask(user)).decision for _ in range(12)]
            counts.append(sum(verdict.allowed for verdict in verdicts))
            assert {verdict.reason for verdict in verdicts} == {Reason.OK, Reason.USER}
    assert admitted[2] == [10] * 4, "a newcomer gets the whole limit from all together"
    assert admitted[1] == [35 // 4, 30 // 4, 25 // 4, 20 // 4], "each goes by what it has heard last"


async def test_frozen_server_at_start_delays_little(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.pause()
    site = Site(own_server.url, redis_prefix, MANY, **PROMPTLY)
    site.throttle.start()
    first = [await site.ask() for _ in range(10)]
    assert all(asked.decision.allowed for asked in first)
    assert max(asked.took_s for asked in first) < HANG_S / 2, "by its deadline, not by that of a connection"
    await site.comes(HealthState.DOWN)
    assert changes(caplog) == ["store_lost"]
    own_server.resume()
    await site.comes(HealthState.UP)
    assert (await site.ask()).shared
