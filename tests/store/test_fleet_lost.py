"""A fleet whose server is frozen or gone, and user limits on the same one: nobody waits twice."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from autoglm_throttle.limiting.shared.store_health import HealthState
from autoglm_throttle.types import Reason
from tests.store.polling import until
from tests.store.real_server import BACK_S, FIRST_S, LOCAL_S, Site, changes, connected
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

MANY = "100000/minute"
APART = {"fleet": True, "workers": 4, "redis_deadline_s": 10 * FIRST_S, "redis_read_s": 20 * FIRST_S}
"""A deadline of the user limits that cannot be taken for that of the leases."""

ONCE_S = 5 * FIRST_S
"""For a request that waits for a lease alone, on a busy machine; promised are 60 ms."""


async def quiet(site: Site) -> None:
    """What it had leased has gone back, so that the next request must ask for more."""
    buckets = site.throttle._buckets
    until(lambda: not any(bucket.tokens(0.0) for bucket in buckets.all), 10.0, "an empty pool")


async def test_the_first_requests_of_an_outage_wait_for_one_deadline_and_are_admitted(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autoglm_throttle")
    site = await connected(own_server.url, redis_prefix, MANY, rate_mid_rps=1000, **APART)
    await quiet(site)
    own_server.pause()
    crowd = await asyncio.gather(*(site.ask(user) for user in range(1, 50)))
    then = [await site.ask() for _ in range(100)]
    assert {asked.decision.reason for asked in crowd} == {Reason.OK}
    assert max(asked.took_s for asked in crowd) < ONCE_S
    assert statistics.median(asked.took_s for asked in then) < LOCAL_S
    assert max(asked.took_s for asked in then) < ONCE_S
    own_server.resume()
    assert await site.comes(HealthState.REMOTE, BACK_S) < BACK_S
    assert (await site.ask()).shared
    assert changes(caplog) in (["store_lost", "store_back"], [])


async def test_the_first_request_after_the_end_of_the_server_is_admitted_by_the_own_part(
    own_server: RedisServer, redis_prefix: str
) -> None:
    site = await connected(own_server.url, redis_prefix, "5/minute", rate_mid_rps=40, **APART)
    await quiet(site)
    own_server.kill()
    asked = [await site.ask(user) for user in range(1, 31)]
    reasons = [one.decision.reason for one in asked]
    assert reasons[:9] == [Reason.OK] * 9
    assert reasons.count(Reason.OK) <= 40 / 4 + 1 + 40 / 4 * sum(one.took_s for one in asked)
    assert Reason.RATE in reasons
    assert max(one.took_s for one in asked) < ONCE_S
    assert site.throttle.snapshot().rate_limit_rps[1] == 10.0  # type: ignore[index]
