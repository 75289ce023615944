"""A fleet and user limits on one frozen or lost server: no request waits twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from autoglm_throttle.store import fleet
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.types import Reason
from tests.store.polling import HANG_S, until
from tests.store.real_server import PATIENTLY, Site, changes, connected
from tests.store.server import RedisServer

pytestmark = pytest.mark.server

MANY = "100000/minute"
APART = {"fleet": True, "workers": 4, **PATIENTLY}
"""Settings whose deadline of the user limits cannot be taken for that of the leases."""


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the leases a deadline that a server on a busy machine keeps."""
    monkeypatch.setattr(fleet, "DEADLINE_S", 0.2)


async def quiet(site: Site) -> None:
    """Wait until its lease is returned, so that the next request must ask for more."""
    buckets = site.throttle.admission.parts.buckets
    until(lambda: not any(bucket.tokens(0.0) for bucket in buckets.all), HANG_S, "an empty pool")


async def test_first_requests_of_outage_wait_one_deadline(
    own_server: RedisServer, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autoglm_throttle")
    site = await connected(own_server.url, redis_prefix, MANY, rate_mid_rps=1000, **APART)
    await quiet(site)
    own_server.pause()
    asked_for = site.store.stats.sent
    crowd = await asyncio.gather(*(site.ask(user) for user in range(1, 50)))
    then = [await site.ask() for _ in range(100)]
    assert {asked.decision.reason for asked in crowd} == {Reason.OK}
    assert site.store.stats.sent == asked_for, "who has waited for a lease waits for no user limit"
    assert not any(asked.waited for asked in then)
    own_server.resume()
    await site.comes(HealthState.UP)
    assert (await site.ask()).shared
    assert changes(caplog) in (["store_lost", "store_recovered"], [])


async def test_first_request_after_server_end_uses_own_share(
    own_server: RedisServer, redis_prefix: str
) -> None:
    site = await connected(own_server.url, redis_prefix, "5/minute", rate_mid_rps=40, **APART)
    await quiet(site)
    own_server.kill()
    began_s = time.monotonic()
    asked = [await site.ask(user) for user in range(1, 61)]
    passed_s = time.monotonic() - began_s
    reasons = [one.decision.reason for one in asked]
    assert reasons[:9] == [Reason.OK] * 9
    assert reasons.count(Reason.OK) <= 40 / 4 + 1 + 40 / 4 * passed_s
    assert Reason.RATE in reasons
    assert not any(one.waited for one in asked[3:]), "nobody waits twice"
    assert site.throttle.snapshot().rate_limit_rps[1] == 10.0  # type: ignore[index]
