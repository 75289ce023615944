"""Callers that are cancelled, block the loop, start a loop each, fork, or ask from several processes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from tests.store.checking_processes import Crowd
from tests.store.descriptors import open_files
from tests.store.polling import Jumps
from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer
from tests.store.store_checks import LIMIT, PATIENT_S, ask, charge, left, window_at

pytestmark = pytest.mark.server


async def test_cancelled_callers_do_not_mix_answers(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    assert await left(window, 0) == LIMIT - 1
    opened = slow_proxy.opened
    slow_proxy.delay_s = 0.03
    chance = random.Random(1)
    gone: list[int] = []
    for used in range(1, 9):
        quitters = range(1000 * used, 1000 * used + 16)
        stayers = range(1, 49)
        order = [*quitters, *stayers]
        chance.shuffle(order)
        tasks = {user: asyncio.create_task(left(window, user, limit=LIMIT + user)) for user in order}
        for user in quitters:
            asyncio.get_running_loop().call_later(chance.uniform(0.0, 0.04), tasks[user].cancel)
        answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
        for user, answer in zip(tasks, answers, strict=True):
            if isinstance(answer, asyncio.CancelledError):
                gone.append(user)
            else:
                assert answer == LIMIT + user - (used if user in stayers else 1)
    assert slow_proxy.opened - opened <= 2, "connections"
    assert len(gone) > 40, "most quitters were still waiting"
    slow_proxy.delay_s = 0.0
    await _all_given_back(window_at(slow_proxy.url, redis_prefix), gone)


async def _all_given_back(window: RedisUserLimitStore, gone: list[int]) -> None:
    wanted = [LIMIT + user for user in gone]
    for _ in range(5000):
        there = await asyncio.gather(*(left(window, user, limit=LIMIT + user, units=0) for user in gone))
        if there == wanted:
            return
    raise AssertionError("who was cancelled gets the unit back")


@pytest.mark.slow
async def test_blocked_loop_is_no_store_error(own_server: RedisServer, redis_prefix: str) -> None:
    window = window_at(own_server.url, redis_prefix)
    assert await left(window, 0) == LIMIT - 1
    blocks = Jumps(asyncio.get_running_loop())
    for passes in range(6):
        asked = [asyncio.create_task(ask(window, user)) for user in range(1, 40)]
        for _ in range(passes):
            await asyncio.sleep(0)
        blocks(1.5 * PATIENT_S)
        answers = await asyncio.gather(*asked)
        assert [answer for answer in answers if isinstance(answer, StoreErrorKind)] == [], passes


@pytest.mark.slow
def test_a_loop_for_each_request_leaves_nothing_open(own_server: RedisServer, redis_prefix: str) -> None:
    window = window_at(own_server.url, redis_prefix)
    assert asyncio.run(left(window, 1, limit=1000)) == 999
    before = open_files()
    for used in range(2, 302):
        assert asyncio.run(left(window, 1, limit=1000)) == 1000 - used
    assert open_files() == before
    assert int(own_server.info("clients")["connected_clients"]) <= 2


FORK = """
import asyncio, gc, os, signal, sys
from tests.store.store_checks import LIMIT, left, window_at

window = window_at(sys.argv[1], sys.argv[2])

async def several(user):
    for used in range(1, 41):
        assert await left(window, user) == LIMIT - used

with asyncio.Runner() as runner:
    assert runner.run(left(window, 1)) == LIMIT - 1
    asked = runner.get_loop().create_task(left(window, 2))
    for _ in range(2):
        runner.run(asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        parents, window = window, window_at(sys.argv[1], sys.argv[2])
        gc.collect()
        health = window.stats()
        assert (health.calls, health.waiting) == (0, 0), health
        asyncio.run(several(3))
        os._exit(0)
    runner.run(several(4))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

    async def the_rest():
        assert await asked == LIMIT - 1
        assert await left(window, 3) == LIMIT - 41
        assert await left(window, 1) == LIMIT - 2

    runner.run(the_rest())
print("both lived")
"""


@pytest.mark.slow
def test_forked_child_uses_own_connections(own_server: RedisServer, redis_prefix: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, own_server.url, redis_prefix],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "both lived\n", done.stderr
    assert done.stderr == ""


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    with Crowd(4) as crowd:
        yield crowd


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "asks"), [(100, 128), (1500, 500)], ids=["exact", "compact"])
def test_four_processes_together_admit_exactly_the_limit(
    crowd: Crowd, redis_server: RedisServer, redis_prefix: str, limit: int, asks: int
) -> None:
    shares = crowd(url=redis_server.url, prefix=redis_prefix, limit=limit, asks=asks)
    assert sum(shares) == limit


async def test_one_process_admits_exactly_the_limit_of_512_at_once(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(redis_server.url, redis_prefix)
    answers = await asyncio.gather(*(ask(window, 1) for _ in range(512)))
    assert [answer for answer in answers if isinstance(answer, StoreErrorKind)] == []
    assert sum(answer[0] == 0 for answer in answers if not isinstance(answer, StoreErrorKind)) == LIMIT
    assert window.stats().calls <= 512 / 100


class TestSideBySide:
    """Services that share one server."""

    async def test_services_and_prefixes_do_not_share_users(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> None:
        windows = [
            window_at(redis_server.url, redis_prefix),
            window_at(redis_server.url, redis_prefix, service="other"),
            window_at(redis_server.url, f"{redis_prefix}x"),
        ]
        for used in (1, 2):
            assert [await left(window, 1) for window in windows] == [LIMIT - used] * 3

    async def test_every_key_is_under_the_prefix_and_ends(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> None:
        window = window_at(redis_server.url, redis_prefix)
        for limit in (LIMIT, 5000):
            await asyncio.gather(*(left(window, user, limit=limit) for user in range(8)))
        keys = redis_server.command("KEYS", f"{redis_prefix}:default:w2:*")
        assert len(keys) == 16
        assert all(0 < redis_server.command("PTTL", key) <= 68_000 for key in keys)

    async def test_changed_limit_applies_to_next_request(
        self, redis_server: RedisServer, redis_prefix: str
    ) -> None:
        old, new = (window_at(redis_server.url, redis_prefix) for _ in range(2))
        for used in range(1, 11):
            assert await left(old, 1, limit=20) == 20 - used
        refused = await ask(new, 1, limit=10)
        assert not isinstance(refused, StoreErrorKind)
        assert refused[0] > refused[1] == 0
        assert await left(new, 1, limit=30) == 19
        assert await left(old, 1, limit=20) == 8


async def test_granted_units_can_be_refunded(redis_server: RedisServer, redis_prefix: str) -> None:
    window = window_at(redis_server.url, redis_prefix)
    for limit in (LIMIT, 5000):
        kept = await ask(window, 1, limit=limit)
        answer = await ask(window, 1, limit=limit, units=7)
        assert not isinstance(kept, StoreErrorKind)
        assert not isinstance(answer, StoreErrorKind)
        window.give_back(window.protocol.build_check([charge(1, limit=limit, units=7)]), answer)
        assert await left(window, 1, limit=limit) == limit - 2
