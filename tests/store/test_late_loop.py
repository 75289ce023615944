"""User limits and leases of an event loop that is late in each of its turns, on a healthy store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store import fleet
from autoglm_throttle.store.fleet import FleetSync
from autoglm_throttle.store.health import HealthState
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.types import Reason
from tests.store.batches import ManualLoop, Number, Plant
from tests.store.checking_processes import Crowd
from tests.store.clients import PATIENCE_S, Wire
from tests.store.fleets import admit, beats
from tests.store.polling import Jumps, until
from tests.store.real_server import LIMIT, connected
from tests.store.server import RedisServer
from tests.store.store_checks import window_at

DEADLINE_S = StoreSettings().redis_deadline_s
TURN_S = 1.2 * DEADLINE_S


@asynccontextmanager
async def late_turns(server: RedisServer, turn_s: float) -> AsyncIterator[None]:
    """Delay each turn of the loop, and let the server do meanwhile all that it was asked for."""
    jumps, loop, is_on = Jumps(asyncio.get_running_loop()), asyncio.get_running_loop(), True

    def turn() -> None:
        server.command("PING")
        jumps(turn_s)
        if is_on:
            loop.call_soon(turn)

    loop.call_soon(turn)
    try:
        yield
    finally:
        is_on = False
        await asyncio.sleep(0)


@pytest.mark.server
@pytest.mark.parametrize("turn_s", [TURN_S, 0.4 * DEADLINE_S, 0.1 * DEADLINE_S, 100 * DEADLINE_S])
async def test_late_loop_admits_exactly_the_limit(
    own_server: RedisServer, redis_prefix: str, turn_s: float
) -> None:
    site = await connected(own_server.url, redis_prefix)
    before = site.fallbacks
    async with late_turns(own_server, turn_s):
        waves = []
        for _ in range(10):  # the later waves find all slots in flight
            waves.append(asyncio.ensure_future(site.crowd(*[1] * 15)))
            await asyncio.sleep(0)
        decisions = [decision for wave in waves for decision in await wave]
    assert sum(decision.allowed for decision in decisions) == LIMIT
    assert {decision.reason for decision in decisions} == {Reason.OK, Reason.USER}
    assert site.fallbacks == before
    assert (site.state, site.store.cause) == (HealthState.UP, None)


@pytest.mark.slow
@pytest.mark.server
def test_eight_busy_processes_admit_exactly_the_limit(own_server: RedisServer, redis_prefix: str) -> None:
    with Crowd(8, "tests.store.busy_throttles") as crowd:
        admitted = crowd(url=own_server.url, prefix=redis_prefix, limit="50000/hour", waves=14, asks=256)
    assert sum(admitted) == 50_000


@pytest.mark.server
async def test_late_loop_still_detects_a_silent_server(own_server: RedisServer, redis_prefix: str) -> None:
    site = await connected(own_server.url, redis_prefix)
    before = site.fallbacks
    own_server.pause()
    jumps = Jumps(asyncio.get_running_loop())
    task = asyncio.ensure_future(site.crowd(*range(1, 20)))
    turns = 0
    while not task.done():
        assert turns < 100, "a silent server is not waited for"
        turns += 1
        jumps(TURN_S)
        await asyncio.sleep(0)
    assert {decision.allowed for decision in task.result()} == {True}
    assert site.fallbacks == before + 19
    assert site.store.cause is StoreErrorKind.TIMEOUT
    own_server.resume()


@pytest.mark.server
async def test_probe_of_a_late_loop_succeeds(own_server: RedisServer, redis_prefix: str) -> None:
    window = window_at(own_server.url, redis_prefix, deadline_s=DEADLINE_S)
    async with late_turns(own_server, TURN_S):
        assert await window.probe() is None


def test_deadline_counts_no_time_of_a_stalled_loop() -> None:
    with Plant() as plant:
        (future,) = plant.together(Number(0))
        for _ in range(10):
            plant.loop.stall(0.3)
        assert not future.done()
        plant.loop.move(DEADLINE_S / 2)
        assert future.result() is StoreErrorKind.TIMEOUT


@pytest.fixture
def silent(wire: Wire, made: Callable[..., FleetSync]) -> Iterator[tuple[FleetSync, ManualLoop]]:
    """Return a member of a fleet whose store answers no more until the wire is told so, and its late loop."""
    loop = ManualLoop()
    member = made(wire, clock=loop.time)
    beats(member, wire)
    wire.answers.clear()
    yield member, loop
    loop.end()


def test_late_loop_takes_the_tokens_of_its_fleet(wire: Wire, silent: tuple[FleetSync, ManualLoop]) -> None:
    member, loop = silent
    request = loop.create_task(admit(member))
    loop.settle()
    for _ in range(10):
        loop.stall(TURN_S)
    assert not request.done()
    wire.answers.set()
    until(lambda: not member.leases.waiters, PATIENCE_S, "the answer")
    assert loop.run_until_complete(request) == (True, True)
    assert member.leases.is_up


def test_late_loop_still_detects_a_silent_store_of_its_fleet(silent: tuple[FleetSync, ManualLoop]) -> None:
    member, loop = silent
    request = loop.create_task(admit(member))
    loop.settle()
    loop.stall(100 * TURN_S)
    loop.move(1.2 * fleet.DEADLINE_S)
    assert request.done()
    assert not member.leases.is_up
