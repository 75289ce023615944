"""Callers that block the loop, start loops, fork, are cancelled, attack, or ask from several processes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoglm_throttle import Decision, Demand, Permit
from autoglm_throttle.store.health import HealthState
from tests.store.checking_processes import Crowd
from tests.store.descriptors import open_files
from tests.store.polling import HANG_S, Jumps, until
from tests.store.proxy import SlowProxy
from tests.store.real_server import HASTY, LIMIT, PATIENTLY, Site, connected
from tests.store.server import RedisServer
from tests.store.store_checks import name

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
MANY = "1000/minute"


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_makes_no_decision_local(
    own_server: RedisServer, redis_prefix: str
) -> None:
    settings = {**PATIENTLY, "redis_read_s": HANG_S, "redis_connect_s": HANG_S}
    site = await connected(own_server.url, redis_prefix, f"{LIMIT}/hour", **settings)
    blocks = Jumps(asyncio.get_running_loop())
    before = site.fallbacks
    for passes in range(6):
        asked = [asyncio.create_task(site.ask(user)) for user in range(1, 40)]
        for _ in range(passes):
            await asyncio.sleep(0)
        blocks(1.5 * PATIENTLY["redis_deadline_s"])
        decisions = [one.decision for one in await asyncio.gather(*asked)]
        assert [decision.remaining for decision in decisions] == [LIMIT - 1 - passes] * 39
    assert site.fallbacks == before
    assert site.state is HealthState.UP


class TestLoops:
    """One throttle, many event loops."""

    @pytest.mark.slow
    def test_one_for_each_request_leaves_nothing_open(
        self, own_server: RedisServer, redis_prefix: str
    ) -> None:
        site = Site(own_server.url, redis_prefix, MANY, **PATIENTLY)
        assert asyncio.run(site.ask()).left == 999
        before = open_files()
        for used in range(2, 302):
            assert asyncio.run(site.ask()).left == 1000 - used
        assert open_files() == before
        assert int(own_server.info("clients")["connected_clients"]) <= 3
        assert site.fallbacks == 0

    def test_one_for_each_request_comes_back_after_an_outage(
        self, own_server: RedisServer, redis_prefix: str
    ) -> None:
        site = Site(own_server.url, redis_prefix, MANY, **HASTY, **PATIENTLY)
        asyncio.run(site.ask())
        own_server.kill()
        assert not asyncio.run(site.ask()).shared
        assert site.store.state is HealthState.DOWN
        own_server.restart()
        until(lambda: asyncio.run(site.ask()).shared, HANG_S, "it is shared again")

    def test_two_at_the_same_time_count_together(self, own_server: RedisServer, redis_prefix: str) -> None:
        site = Site(own_server.url, redis_prefix, MANY, **PATIENTLY)
        asyncio.run(site.connected())
        seen: list[int] = []

        async def ask() -> None:
            for _ in range(10):
                seen.extend(int(one.remaining) for one in await site.crowd(*[1] * 20))

        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(600, 1000)), "each unit was spent once"
        assert site.fallbacks == 0


FORK = """
import asyncio, gc, os, signal, sys
from tests.store.real_server import PATIENTLY, Site

site = Site(sys.argv[1], sys.argv[2], "100000/minute", **PATIENTLY)

async def parent():
    await site.connected()
    assert (await site.ask(1)).left == 99999
    asked = asyncio.create_task(site.ask(4))
    for _ in range(2):
        await asyncio.sleep(0)
    assert site.store.stats.waiting == 1
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        asyncio._set_running_loop(None)
        gc.collect()
        assert site.store.stats.waiting == 0, site.store
        asyncio.run(several())
        os._exit(0)
    assert (await asked).left == 99999
    used = 0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        used += 1
        assert (await site.ask(3)).left == 100000 - used
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert (await site.ask(2)).left == 99959
    assert site.fallbacks == 0

async def several():
    for used in range(1, 41):
        asked = await site.ask(2)
        assert (asked.left, asked.shared) == (100000 - used, True), asked

asyncio.run(parent())
print("both counted on")
"""


@pytest.mark.slow
def test_a_forked_child_and_its_parent_count_on(own_server: RedisServer, redis_prefix: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, own_server.url, redis_prefix],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout == "both counted on\n", done.stderr


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    with Crowd(4, "tests.store.many_throttles") as crowd:
        yield crowd


class TestTogether:
    """Processes that share a limit."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("limit", "asks"), [(100, 128), (1500, 500)], ids=["exact", "compact"])
    def test_four_admit_exactly_the_limit_of_a_cold_user(
        self, crowd: Crowd, redis_server: RedisServer, redis_prefix: str, limit: int, asks: int
    ) -> None:
        job = {"url": redis_server.url, "prefix": redis_prefix, "limit": f"{limit}/minute"}
        assert sum(crowd(**job, user=1, asks=asks)) == limit

    async def test_512_at_once_admit_exactly_the_limit_of_a_cold_user(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> None:
        site = await connected(redis_server.url, redis_prefix, f"{LIMIT}/minute", **PATIENTLY)
        decisions = await site.crowd(*[1] * 512)
        assert sum(decision.allowed for decision in decisions) == LIMIT
        admitted = sorted(int(decision.remaining) for decision in decisions if decision.allowed)
        assert admitted == list(range(LIMIT))
        assert site.fallbacks == 0

    async def test_release_with_changed_limit_keeps_units(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> None:
        old = await connected(redis_server.url, redis_prefix, "20/minute", **PATIENTLY)
        assert [(await old.ask()).left for _ in range(10)] == list(range(19, 9, -1))
        lowered = await connected(redis_server.url, redis_prefix, "10/minute", **PATIENTLY)
        assert not (await lowered.ask()).decision.allowed
        raised = await connected(redis_server.url, redis_prefix, "30/minute", **PATIENTLY)
        assert (await raised.ask()).left == 19
        assert (await old.ask()).left == 8


async def test_cancelled_caller_gets_unit_back_and_no_slot(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    gate = {
        "policy": "concurrency",
        "inflight_start": 32,
        "inflight_floor": 32,
        "inflight_max": 32,
        "slo_s": 60,
    }
    site = await connected(slow_proxy.url, redis_prefix, MANY, **PATIENTLY, **gate, wait_budget=1.0)
    opened = slow_proxy.opened
    slow_proxy.delay_s = 0.03
    chance = random.Random(1)
    admitted: list[Decision] = []
    gone = 0
    for _ in range(6):
        tasks = [asyncio.create_task(_brief(site, admitted)) for _ in range(64)]
        for task in chance.sample(tasks, 16):
            asyncio.get_running_loop().call_later(chance.uniform(0.0, 0.04), task.cancel)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in outcomes), outcomes
        gone += len(tasks) - outcomes.count(None)
    assert gone > 40
    assert len(admitted) < 6 * 64 - 20, "most who left were still waiting"
    assert all(decision.allowed for decision in admitted)
    assert slow_proxy.opened - opened <= 2, "connections"
    snapshot = site.throttle.snapshot()
    assert snapshot.concurrency is not None
    assert (snapshot.concurrency.in_flight, sum(snapshot.concurrency.waiting)) == (0, 0)
    assert not any(snapshot.active.values())
    slow_proxy.delay_s = 0.0
    other = await connected(slow_proxy.url, redis_prefix, MANY, **PATIENTLY)
    looked = 1
    while (left := (await other.ask()).left) != 1000 - len(admitted) - looked:
        assert looked < 500, (left, len(admitted), looked)
        looked += 1
        await asyncio.sleep(0.01)


async def _brief(site: Site, admitted: list[Decision]) -> None:
    """A request that holds its place for a moment."""
    verdict = await site.throttle.admit(Demand(user=name(1)))
    assert isinstance(verdict, Permit), verdict
    admitted.append(verdict.decision)
    with verdict:
        await asyncio.sleep(0)


async def test_an_attack_by_exhausted_users_hardly_reaches_the_server(
    own_server: RedisServer, redis_prefix: str
) -> None:
    # Denials are asked again once a second by default: on a slow machine that would count the seconds.
    settings = PATIENTLY | {"refused_cache_s": 30.0}
    site = await connected(own_server.url, redis_prefix, "5/minute", **settings)
    for user in range(20):
        while (await site.ask(user)).decision.allowed:
            pass
    before = site.store.stats.sent
    chance = random.Random(1)
    attacks, honest = 0, 0
    for _ in range(100):
        users = []
        for _ in range(60):
            if chance.random() < 0.9:
                users.append(chance.randrange(20))
                attacks += 1
            else:
                honest += 1
                users.append(1000 + honest)
        decisions = await asyncio.gather(*(site.throttle.admit(Demand(user=name(user))) for user in users))
        assert [isinstance(one, Permit) for one in decisions] == [user >= 1000 for user in users]
    asked = site.store.stats.sent - before - honest
    assert asked <= 0.02 * attacks, (asked, attacks)
    assert site.fallbacks == 0
