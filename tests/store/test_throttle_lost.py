"""The server is gone, comes back empty, was never there, or comes and goes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from autoglm_throttle import Demand, Permit, Settings, Throttle
from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import Decision, Reason, StoreFailureMode
from tests.store.polling import suspended
from tests.store.proxy import SlowProxy
from tests.store.real_server import HASTY, PATIENTLY, Site, Traffic, changes, connected, said
from tests.store.server import RedisServer
from tests.store.store_checks import name

pytestmark = pytest.mark.server

AWAY = {StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}
FLAPS = 10
UNHURRIED = {**HASTY, **PATIENTLY}


class TestKilled:
    """The port is closed; the operator's choice applies."""

    async def _decisions(
        self, server: RedisServer, prefix: str, on_error: StoreFailureMode
    ) -> list[Decision]:
        """Eight requests of one user with a limit of five, three of them before the end of the server."""
        site = await connected(server.url, prefix, "5/minute", redis_on_error=on_error, **PATIENTLY)
        assert [(await site.ask()).left for _ in range(3)] == [4, 3, 2]
        server.kill()
        lost = [await site.ask() for _ in range(5)]
        assert sum(asked.waited for asked in lost) <= StoreSettings().redis_failures
        assert not lost[-1].waited
        assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
        assert site.state is HealthState.DOWN
        assert site.store.cause in AWAY
        assert sum(site.store.fallbacks[trouble] for trouble in AWAY) >= 5
        server.restart()
        await site.comes(HealthState.UP)
        assert (await site.ask()).left == 4, "shared again, on an empty server"
        return [asked.decision for asked in lost]

    async def test_local_mode_continues_from_remaining(
        self, own_server: RedisServer, redis_prefix: str
    ) -> None:
        decisions = await self._decisions(own_server, redis_prefix, StoreFailureMode.LOCAL)
        assert [decision.reason for decision in decisions] == [Reason.OK] * 2 + [Reason.USER] * 3
        assert [decision.remaining for decision in decisions] == [1, 0, 0, 0, 0]

    @pytest.mark.slow
    async def test_allow_mode_admits_all(self, own_server: RedisServer, redis_prefix: str) -> None:
        decisions = await self._decisions(own_server, redis_prefix, StoreFailureMode.ALLOW)
        assert [decision.reason for decision in decisions] == [Reason.OK] * 5

    async def test_deny_mode_rejects_all_with_retry_after(
        self, own_server: RedisServer, redis_prefix: str
    ) -> None:
        decisions = await self._decisions(own_server, redis_prefix, StoreFailureMode.DENY)
        assert [decision.reason for decision in decisions] == [Reason.STORE] * 5
        assert all(0.0 <= decision.retry_after_s <= 1.2 for decision in decisions)


async def test_after_a_restart_the_window_heals_by_itself(own_server: RedisServer, redis_prefix: str) -> None:
    sites = [await connected(own_server.url, redis_prefix, "10/hour", **UNHURRIED) for _ in range(2)]
    assert [(await sites[0].ask()).left for _ in range(8)] == list(range(9, 1, -1))
    own_server.restart()
    for site in sites:
        await site.connected()
    assert (await sites[0].ask()).left == 9, "what was counted before is forgotten"
    admitted = 1
    for _ in range(20):
        asked = await asyncio.gather(*(site.ask() for site in sites))
        admitted += sum(one.decision.allowed for one in asked)
    assert admitted == 10


async def test_a_restart_fails_and_delays_no_request(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site = await connected(own_server.url, redis_prefix, "100000/minute", **UNHURRIED)
    async with Traffic(site) as traffic:
        for _ in range(3):
            await traffic.more()
            await asyncio.to_thread(own_server.kill)
            await site.comes(HealthState.DOWN)
            await asyncio.to_thread(own_server.restart)
            await site.comes(HealthState.UP)
            await traffic.more()
    assert traffic.refused == []
    assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
    assert changes(caplog) == ["store_lost", "store_recovered"] * 3


async def test_missing_server_at_start_is_logged_once_and_serves(
    slow_proxy: SlowProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow_proxy.reject()
    site = Site(slow_proxy.url, redis_prefix, "5/hour", **UNHURRIED)
    site.throttle.start()
    asked = [await site.ask() for _ in range(8)]
    assert [one.decision.allowed for one in asked] == [True] * 5 + [False] * 3
    await site.probes(4)
    assert not (await site.ask()).decision.allowed
    assert site.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
    assert len(said(caplog, "store_lost")) == 1
    assert "unreachable" in said(caplog, "store_lost")[0]
    slow_proxy.accept()
    await site.comes(HealthState.UP)
    assert (await site.ask()).left == 4, "what the process decided alone is not replayed"


@pytest.mark.slow
async def test_a_server_that_comes_and_goes_under_traffic(
    slow_proxy: SlowProxy, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    hasty = await connected(slow_proxy.url, redis_prefix, "100000/minute", **UNHURRIED)
    usual = await connected(slow_proxy.url, redis_prefix, "100000/minute", **PATIENTLY)
    async with Traffic(hasty) as eager, Traffic(usual) as patient:
        for _ in range(FLAPS):
            await asyncio.to_thread(slow_proxy.reject)
            await hasty.comes(HealthState.DOWN)
            await asyncio.to_thread(slow_proxy.accept)
            await hasty.comes(HealthState.UP)
        await usual.comes(HealthState.UP)
        for traffic in (eager, patient):
            await traffic.more()
    assert eager.refused == patient.refused == []
    assert hasty.store.fallbacks[StoreErrorKind.TIMEOUT] == usual.store.fallbacks[StoreErrorKind.TIMEOUT] == 0
    lines = changes(caplog)
    assert 2 * FLAPS + 2 <= len(lines) <= 4 * FLAPS, "a line for each change"
    assert lines.count("store_lost") == lines.count("store_recovered")
    assert slow_proxy.opened < 8 * FLAPS
    for site in (hasty, usual):
        await site.quiet()


async def test_connections_that_break_are_no_outage(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    site = await connected(slow_proxy.url, redis_prefix, "100000/minute", **PATIENTLY)
    async with Traffic(site) as traffic:
        for _ in range(4):
            await traffic.more()
            await asyncio.to_thread(slow_proxy.cut)
        await traffic.more()
    assert traffic.refused == []
    assert site.state is HealthState.UP
    assert site.store.fallbacks[StoreErrorKind.LOST] == site.fallbacks


async def test_memory_limits_are_unaffected(own_server: RedisServer, redis_prefix: str) -> None:
    site = await connected(own_server.url, redis_prefix, "5/minute", **PATIENTLY)
    plain = Throttle(Settings(gpu="none", policy="fixed", rate_mid_rps=1_000_000, user_limit="5/minute"))
    own_server.pause()
    waiting = asyncio.create_task(site.ask())
    await asyncio.sleep(0)
    asked = [await suspended(plain.admit(Demand(user=name(1)))) for _ in range(8)]
    assert not waiting.done()
    assert [(isinstance(verdict, Permit), waited) for verdict, waited in asked] == [
        *[(True, False)] * 5,
        *[(False, False)] * 3,
    ]
    assert plain.snapshot().store is None
    own_server.resume()
    assert (await waiting).decision.allowed
