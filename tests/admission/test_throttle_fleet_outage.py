"""A fleet and user limits on one store that stops replying: waits and verdicts of the first requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Priority, Reason, Settings, Throttle
from autoglm_throttle.admission import factory
from autoglm_throttle.store.fleet import DEADLINE_S
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.shared_limits import StoreView
from tests.store.clients import Wire
from tests.store.polling import suspended, until
from tests.store.scripted_store import ScriptedStore

ALICE = Demand(Priority.LOW, "a" * 16)
LONG_S = 60.0
"""Seconds until a wait counts as a hang: the store itself is silent for ever."""


class ScriptedThrottle:
    """A throttle with a fake fleet connection and a scripted store, as of one server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.wire = Wire()
        self.store = ScriptedStore()
        monkeypatch.setattr(factory, "shared_store", lambda *_: self.store)
        monkeypatch.setattr(factory, "redis_clients", lambda *_: self)
        values: dict[str, Any] = {"user_limit": "9/minute", "redis_url": "redis://nowhere", "gpu": "none"}
        values |= {"policy": "fixed", "fleet": True, "workers": 4, "rate_low_rps": 40}
        self.throttle = Throttle(Settings(**values | settings))

    def sync(self, timeout_s: float) -> Any:
        return self.wire.connect()

    def view(self) -> StoreView:
        view = self.throttle.snapshot().store
        assert view is not None
        return view

    @property
    def up(self) -> bool:
        fleet = self.throttle.snapshot().fleet
        assert fleet is not None
        return fleet.up

    def falls_silent(self) -> None:
        self.wire.answers.clear()
        self.store.hold = asyncio.Event()

    async def request(self) -> tuple[Reason, float]:
        began = time.monotonic()
        verdict = await self.throttle.admit(ALICE)
        if isinstance(verdict, Permit):
            verdict.settle()
        assert verdict.decision is not None
        return verdict.decision.reason, time.monotonic() - began


@pytest.fixture
def site_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ScriptedThrottle]]:
    sites: list[ScriptedThrottle] = []

    def make(**settings: Any) -> ScriptedThrottle:
        sites.append(ScriptedThrottle(monkeypatch, **settings))
        return sites[-1]

    yield make
    for site in sites:
        site.wire.answers.set()
        site.throttle.stop()


async def started(site: ScriptedThrottle) -> None:
    site.throttle.start()
    await asyncio.to_thread(site.wire.wait)
    members = site.throttle.admission.parts.fleet
    assert members is not None
    until(lambda: not members.leases.is_request_pending, LONG_S, "the first answer")
    await asyncio.sleep(0)


async def test_first_request_waits_once_and_uses_the_local_share(
    site_of: Callable[..., ScriptedThrottle],
) -> None:
    site = site_of()
    await started(site)
    site.store.probes = [StoreErrorKind.TIMEOUT]
    site.falls_silent()
    reason, took_s = await asyncio.wait_for(site.request(), LONG_S)
    assert reason is Reason.OK
    assert took_s >= DEADLINE_S - 0.002
    assert site.store.charged == []
    assert site.view().fallbacks[StoreErrorKind.TIMEOUT] == 1
    await asyncio.sleep(0)
    assert (site.view().state, site.store.probed, site.store.dropped) == (HealthState.DOWN, 2, 1)


async def test_wrong_fleet_report_costs_one_probe_and_no_event(
    site_of: Callable[..., ScriptedThrottle], caplog: pytest.LogCaptureFixture
) -> None:
    site = site_of()
    await started(site)
    site.wire.answers.clear()
    assert (await site.request())[0] is Reason.OK
    await asyncio.sleep(0)
    assert (site.view().state, site.store.dropped) == (HealthState.UP, 0)
    assert not [record for record in caplog.records if "store_lost" in getattr(record, "event", "")]
    assert (await site.request())[0] is Reason.OK
    assert len(site.store.charged) == 1, "it is asked again"


async def test_what_the_windows_have_found_out_no_lease_waits_for(
    site_of: Callable[..., ScriptedThrottle],
) -> None:
    site = site_of()
    await started(site)
    site.falls_silent()
    site.store.report(StoreErrorKind.UNREACHABLE)
    assert not site.up
    (reason, _), waited = await suspended(site.request())
    assert reason is Reason.OK
    assert not waited


async def test_denied_windows_do_not_affect_the_fleet(
    site_of: Callable[..., ScriptedThrottle],
) -> None:
    site = site_of()
    await started(site)
    site.store.report(StoreErrorKind.FORBIDDEN)
    assert site.view().state is HealthState.DOWN
    assert site.up


async def test_the_rates_that_are_shown_are_those_in_force(site_of: Callable[..., ScriptedThrottle]) -> None:
    site = site_of()
    await started(site)
    assert site.throttle.snapshot().rate_limit_rps[Priority.LOW] == 40.0
    site.store.report(StoreErrorKind.UNREACHABLE)
    assert site.throttle.snapshot().rate_limit_rps == {
        Priority.HIGH: 250.0,
        Priority.MID: 125.0,
        Priority.LOW: 10.0,
    }
    assert "rates=250/125/10/s" in repr(site.throttle)
