"""A fleet's store that is or seems silent: cost, log events and recovery."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
from autoglm_throttle.store import fleet as fleet_module
from autoglm_throttle.store.client import TIMEOUT_S, RedisClients
from autoglm_throttle.store.fleet import PROBE_S, FleetSync, LeasedBuckets, fleet_keys
from autoglm_throttle.store.health import JITTER
from autoglm_throttle.store.running_time import TICKS
from autoglm_throttle.types import Demand, Priority
from tests.store.clients import PATIENCE_S, Wire
from tests.store.fleets import MID, admit, beats
from tests.store.polling import until
from tests.store.server import RedisServer

STILL_S = 0.08
DEADLINE_S = 0.2
"""For a real server: on a busy machine an answer may take longer than the 50 ms of a fleet."""
LARGE = Demand(Priority.MID, cost=300.0)


class Jumping:
    """A clock that the test alone moves: its time goes on, and nothing of the process has run."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return 1000.0 + self.ahead_s


def test_blocked_event_loop_is_no_store_silence(wire: Wire, made: Callable[..., FleetSync]) -> None:
    clock = Jumping()
    fleet = made(wire, clock=clock)
    beats(fleet, wire)

    async def stands_still() -> bool:
        request = asyncio.create_task(admit(fleet))
        await asyncio.sleep(0)
        until(lambda: not fleet.leases.waiters, PATIENCE_S, "the answer")  # the loop stands still meanwhile
        clock.ahead_s += STILL_S
        return (await request)[0]

    assert asyncio.run(stands_still())
    assert fleet.leases.is_up
    assert fleet.view().failures == 0


def test_answered_waiter_is_not_requested_again_by_blocked_loop(
    wire: Wire, made: Callable[..., FleetSync]
) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.answer = lambda arguments: [1, 1, *[0] * 6]

    async def stands_still() -> int:
        waits = asyncio.create_task(fleet.ensure(MID))
        await asyncio.sleep(0)
        wire.wait()
        asked_again = wire.asked.acquire(timeout=0.05)
        await waits
        return asked_again

    assert not asyncio.run(stands_still())


async def gives_up(fleet: FleetSync, clock: Jumping) -> None:
    """Wait in vain, as the thread that asks has not had its turn."""
    wake, fleet.leases.wake = fleet.leases.wake, lambda: None
    waits = asyncio.create_task(fleet.ensure(MID))
    await asyncio.sleep(0)
    assert fleet.leases.waiters
    fleet.leases.wake = wake
    while not waits.done():
        clock.ahead_s += fleet_module.DEADLINE_S / TICKS
        for waiter in fleet.leases.waiters:
            waiter()
        await asyncio.sleep(0)


def test_abandoned_store_is_retried_at_once_and_logged(
    wire: Wire,
    made: Callable[..., FleetSync],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_module, "PROBE_S", 10 * PATIENCE_S)
    clock = Jumping()
    fleet = made(wire, clock=clock)
    beats(fleet, wire)
    wire.answers.clear()
    asyncio.run(gives_up(fleet, clock))
    assert not fleet.leases.is_up
    assert wire.asked.acquire(timeout=PATIENCE_S)
    wire.answers.set()
    until(lambda: not away(fleet), PATIENCE_S, "it is back")
    until(lambda: len(caplog.messages) == 2, PATIENCE_S, "two lines")
    assert "1/4 of the rates (no answer within 50 ms)" in caplog.messages[0]
    assert "available again" in caplog.messages[1]
    assert fleet.view().failures == 0


def test_failing_store_is_retried_after_1_s_and_logged_once(
    wire: Wire, made: Callable[..., FleetSync], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Jumping()
    fleet = made(wire, clock=clock)
    beats(fleet, wire)
    wire.error = ConnectionError("gone")
    asyncio.run(gives_up(fleet, clock))
    wire.wait()
    until(lambda: fleet.view().failures == 1, PATIENCE_S, "the failure")
    pause_s = fleet.leases.health.next_probe_s - clock()
    assert PROBE_S * (1 - JITTER) <= pause_s <= PROBE_S * (1 + JITTER)
    clock.ahead_s += pause_s
    fleet.leases.wake()
    until(lambda: fleet.view().failures == 2, PATIENCE_S, "another failure")
    assert [line for line in caplog.messages if "is unavailable" in line] == caplog.messages[:1]
    assert len(caplog.messages) == 1


def test_late_answer_is_logged_as_recovery(
    wire: Wire, made: Callable[..., FleetSync], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.answers.clear()
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        asyncio.run(admit(fleet))
        assert not fleet.leases.is_up
        wire.answers.set()
        until(lambda: len(caplog.messages) == 2, PATIENCE_S, "two lines")
    assert "no answer within 50 ms" in caplog.messages[0]
    assert "available again" in caplog.messages[1]
    assert fleet.view().failures == 0


@pytest.fixture
def member(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetSync]:
    """One of a fleet on a server that may be stopped, after its first answer."""
    monkeypatch.setattr(fleet_module, "DEADLINE_S", DEADLINE_S)
    settings = StoreSettings(redis_url=SecretStr(own_server.url))
    clients = RedisClients(settings)
    held = LeasedBuckets(RateSettings(workers=2), FleetSettings(), time.monotonic())
    fleet = FleetSync(held, SerialLock(), settings, FleetSettings(), lambda: clients.sync(TIMEOUT_S))
    fleet.start()
    until(lambda: fleet.view().calls and not held.is_request_pending, PATIENCE_S, "the first answer")
    yield fleet
    fleet.stop(PATIENCE_S)


async def crowd(fleet: FleetSync) -> list[float]:
    """Requests that come while the first of them waits; the seconds of each."""

    async def comes(after_s: float) -> float:
        await asyncio.sleep(after_s)
        began_s = time.monotonic()
        await admit(fleet, LARGE)
        return time.monotonic() - began_s

    return await asyncio.gather(*(comes(DEADLINE_S * number / 20) for number in range(20)))


async def one_after_another(fleet: FleetSync) -> set[tuple[bool, bool]]:
    return {await admit(fleet) for _ in range(50)}


def away(fleet: FleetSync) -> bool:
    return not fleet.leases.is_up


def back(fleet: FleetSync) -> None:
    """Wait for its return."""
    until(lambda: not away(fleet), PATIENCE_S, "it is back")
    assert asyncio.run(admit(fleet))[0]


@pytest.mark.slow
def test_frozen_server_costs_50_ms_once_and_recovers(own_server: RedisServer, member: FleetSync) -> None:
    assert asyncio.run(admit(member))[0]
    own_server.pause()
    try:
        took_s = asyncio.run(crowd(member))
        assert took_s[0] >= DEADLINE_S * 0.9
        assert min(took_s) < DEADLINE_S * 0.8, "who comes last waits for the end of the first deadline alone"
        assert away(member)
        assert asyncio.run(one_after_another(member)) == {(True, False)}
        until(lambda: member.view().failures == 2, PATIENCE_S, "it has been asked again")
    finally:
        own_server.resume()
    back(member)
    member.stop(PATIENCE_S)
    assert own_server.command("ZCARD", fleet_keys(StoreSettings())[0]) == 0


@pytest.mark.slow
def test_killed_and_restarted_server_is_detected(own_server: RedisServer, member: FleetSync) -> None:
    assert asyncio.run(admit(member))[0]
    own_server.kill()
    asyncio.run(admit(member, LARGE))
    until(lambda: away(member), PATIENCE_S, "the loss")
    until(lambda: member.view().failures == 2, PATIENCE_S, "it has been asked again")
    own_server.restart()
    back(member)
    until(
        lambda: member.leases.members == 1 and not member.leases.is_request_pending, PATIENCE_S, "an answer"
    )
