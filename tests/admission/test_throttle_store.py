"""The store of user limits: connected, lost, probed and recovered, and its log events."""

import asyncio
import gc
import logging
import os
import threading
import weakref

import pytest

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.settings import Settings
from autoglm_throttle.store import shared_limits
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.shared_limits import SharedUserLimits
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Demand
from tests.admission.forked import forked
from tests.admission.scripted_throttle import ALICE, ScriptedThrottle, iterations
from tests.store.polling import eventually


async def test_an_outage_is_logged_once_and_its_end_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site = ScriptedThrottle(monkeypatch, *[StoreErrorKind.TIMEOUT] * 3, slots=50)
    site.throttle.start()
    await iterations()
    site.store.probes = [StoreErrorKind.TIMEOUT, None]
    for _ in range(10):
        assert isinstance(await site.admit(), Permit)
    store = site.throttle.snapshot().store
    assert store is not None
    assert (store.state, store.cause, store.fallbacks[StoreErrorKind.TIMEOUT]) == (
        HealthState.DOWN,
        StoreErrorKind.TIMEOUT,
        10,
    )
    for _ in range(2):
        site.clock.advance(1.3)
        await site.admit()
        await iterations()
    changes = [record for record in caplog.records if getattr(record, "event", "").startswith("store_")]
    lines = [record.getMessage() for record in changes]
    assert len(lines) == 2
    assert "scripted is unavailable: timeout; each process enforces 1/1 of the user limits" in lines[0]
    assert "answers again after 2.6 s" in lines[1]
    assert site.store.probed == 3
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Ticket)


async def test_the_store_is_connected_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch)
    site.store.probes = [StoreErrorKind.UNREACHABLE]
    site.throttle.start()
    await iterations()
    store = site.throttle.snapshot().store
    assert store is not None
    assert store.state is HealthState.DOWN
    assert isinstance(await site.admit(), Permit)
    assert not site.store.charged


async def test_a_probe_without_a_loop_fails_and_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, StoreErrorKind.UNREACHABLE, queue_max=0)
    await site.admit()
    site.clock.advance(2.0)
    thread = threading.Thread(target=lambda: site.throttle.try_admit(Demand(user=ALICE)))
    thread.start()
    thread.join()
    assert site.store.probed == 0
    site.clock.advance(2.0)
    site.throttle.try_admit(Demand(user=ALICE))
    await iterations()
    assert site.store.probed == 2, "to connect, since nothing samples, and because it is due"


@pytest.mark.parametrize("on_error", ["local", "allow"])
async def test_service_without_rejections_reconnects_its_store(
    monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    site = ScriptedThrottle(monkeypatch, StoreErrorKind.UNREACHABLE, slots=50, redis_on_error=on_error)
    site.throttle.start()
    await iterations()
    assert isinstance(await site.admit(), Permit)
    site.clock.advance(1.3)
    assert isinstance(await site.admit(), Permit)
    await iterations()
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Ticket)


async def test_store_is_probed_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_limits, "POLL_MAX_S", 0.01)
    monkeypatch.setattr(shared_limits, "POLL_MIN_S", 0.01)
    site = ScriptedThrottle(monkeypatch, StoreErrorKind.UNREACHABLE)
    site.throttle.start()
    await iterations()
    await site.admit()
    site.store.probes = [StoreErrorKind.UNREACHABLE, None]
    before = site.store.probed
    for probes in (1, 2):
        site.clock.advance(1.3)
        wanted = before + probes
        await eventually(lambda: site.store.probed == wanted, "a probe")  # noqa: B023 - at once
    await iterations()
    store = site.throttle.snapshot().store
    assert store is not None
    assert store.state is HealthState.UP
    site.clock.advance(60.0)
    await asyncio.sleep(0.05)
    assert site.store.probed == before + 2


def test_a_timer_keeps_no_throttle_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose_and_forget() -> None:
        site = ScriptedThrottle(monkeypatch, StoreErrorKind.UNREACHABLE)
        await site.admit()
        gone = weakref.ref(site.throttle)
        monkeypatch.undo()
        del site
        gc.collect()
        assert gone() is None

    asyncio.run(lose_and_forget())


async def test_probe_runs_where_an_event_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler and a scrape run in threads of their own."""
    site = ScriptedThrottle(monkeypatch)
    site.throttle.start()
    await iterations()
    windows = site.throttle.admission.parts.user_limits
    assert isinstance(windows, SharedUserLimits)

    def due() -> bool:
        return windows.probe_due

    windows.probe_due = True
    await asyncio.to_thread(site.throttle.snapshot)
    assert due()
    assert site.store.probed == 1
    site.throttle.snapshot()
    await iterations()
    assert not due()
    assert site.store.probed == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_lets_the_parents_connections_be(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch)
    site.throttle.try_admit(Demand(user=ALICE))

    def check() -> None:
        view = site.throttle.snapshot().store
        assert view is not None
        assert not any(view.fallbacks.values())

    forked(check)


def test_unused_store_is_reported_at_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autoglm_throttle")
    throttle = Throttle(Settings(redis_url="redis://127.0.0.1:1", gpu="none", key_secret="0123456789abcdef"))
    throttle.start()
    assert throttle.snapshot().store is None
    assert any("is set but unused" in record.getMessage() for record in caplog.records)
