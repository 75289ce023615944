"""The server is frozen, gone, empty, slow or comes and goes: what a window on it answers, and when."""

from __future__ import annotations

import asyncio
import time

import pytest

from autoglm_throttle.limiting.shared.store import StoreErrorKind
from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer
from tests.store.store_checks import (
    DEADLINE_S,
    LIMIT,
    SOON_S,
    Ticker,
    ask,
    comes_back,
    left,
    prompt_window,
    timed,
    window_at,
)

pytestmark = pytest.mark.server

AWAY = {StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}


async def test_a_frozen_server_costs_each_request_the_deadline_and_the_loop_nothing(
    own_server: RedisServer, redis_prefix: str
) -> None:
    window = await prompt_window(own_server.url, redis_prefix)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    own_server.pause()
    async with Ticker() as ticker:
        answers = [await timed(ask(window, 1)) for _ in range(5)]
        crowd = await timed(asyncio.gather(*(ask(window, user) for user in range(2, 300))))
    assert [answer for answer, _ in answers] == [StoreErrorKind.TIMEOUT] * 5
    took = sorted(seconds for _, seconds in answers)
    assert took[0] >= DEADLINE_S - 0.002
    assert took[0] <= 0.06
    assert took[4] < SOON_S
    assert set(crowd[0]) == {StoreErrorKind.TIMEOUT}
    assert crowd[1] < SOON_S
    assert ticker.median_s < 0.01
    assert set(heard) == {StoreErrorKind.TIMEOUT}
    assert 6 <= len(heard) <= 8, "one report for each silence, not for each caller"


async def test_a_server_that_thaws_has_run_nothing_twice(own_server: RedisServer, redis_prefix: str) -> None:
    window = await prompt_window(own_server.url, redis_prefix)
    assert await left(window, 1) == LIMIT - 1
    own_server.pause()
    assert [await ask(window, 1) for _ in range(6)] == [StoreErrorKind.TIMEOUT] * 6
    window.disconnect()
    assert await window.probe() is not None
    own_server.resume()
    assert await comes_back(window, 2.0) < 1.5
    assert LIMIT - 1 - 6 <= await left(window, 1, units=0) <= LIMIT - 1


async def test_a_killed_server_is_known_at_once_and_used_again_once_it_is_back(
    own_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(own_server.url, redis_prefix)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    assert await left(window, 1) == LIMIT - 1
    assert heard == [None]
    own_server.kill()
    first, took = await timed(ask(window, 1))
    assert first in AWAY
    assert took < SOON_S
    second, took = await timed(ask(window, 1))
    assert second is StoreErrorKind.UNREACHABLE
    assert took < SOON_S
    assert await window.probe() is StoreErrorKind.UNREACHABLE
    own_server.restart()
    assert await comes_back(window, 2.0) < 1.5
    assert await left(window, 1) == LIMIT - 1
    assert heard[1:3] == [first, second]
    assert heard[-1] is None


async def test_a_server_that_was_restarted_empty_fails_no_request(
    each_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(each_server.url, redis_prefix)
    for used in range(1, 4):
        assert await left(window, 1) == LIMIT - used
    for _ in range(3):
        each_server.restart()
        first = await asyncio.gather(*(left(window, user) for user in range(1, 50)))
        assert first == [LIMIT - 1] * 49
        assert await left(window, 1) == LIMIT - 2


async def test_a_slow_server_within_the_deadline_is_waited_for(
    slow_proxy: SlowProxy, redis_prefix: str
) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    assert await left(window, 0) == LIMIT - 1
    slow_proxy.delay_s = 0.008
    for used in range(1, 6):
        answers, took = await timed(asyncio.gather(*(left(window, user) for user in range(1, 20))))
        assert answers == [LIMIT - used] * 19
        assert took >= 0.008
    assert slow_proxy.opened <= 2


async def test_a_server_slower_than_the_deadline_gives_no_one_anothers_answer(
    slow_proxy: SlowProxy, redis_prefix: str
) -> None:
    window = await prompt_window(slow_proxy.url, redis_prefix)
    for user in range(1, 9):
        assert await left(window, user, limit=LIMIT + user) == LIMIT + user - 1
    slow_proxy.delay_s = 0.2
    for _ in range(2):
        late, took = await timed(
            asyncio.gather(*(ask(window, user, limit=LIMIT + user) for user in range(1, 9)))
        )
        assert late == [StoreErrorKind.TIMEOUT] * 8
        assert DEADLINE_S - 0.002 <= took < SOON_S
    slow_proxy.delay_s = 0.0
    deadline = time.monotonic() + 2.0
    while isinstance(await ask(window, 0), StoreErrorKind):
        assert time.monotonic() < deadline, "it answers again"
    for user in range(1, 9):
        assert LIMIT + user - 4 <= await left(window, user, limit=LIMIT + user) <= LIMIT + user - 2
    assert window.stats().late >= 1


async def test_a_server_that_comes_and_goes(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    for used in range(1, 9):
        assert await left(window, 1) == LIMIT - used
        slow_proxy.refuse()
        answers = [await timed(ask(window, 1)) for _ in range(3)]
        assert {answer for answer, _ in answers} <= AWAY
        assert max(seconds for _, seconds in answers) < SOON_S
        slow_proxy.accept()
        await comes_back(window, 1.0)
    assert window.stats().waiting == 0


async def test_connections_that_break_cost_at_most_what_was_in_flight(
    slow_proxy: SlowProxy, redis_prefix: str
) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    assert await left(window, 1) == LIMIT - 1
    slow_proxy.delay_s = 0.02
    asked = asyncio.ensure_future(ask(window, 1))
    await asyncio.sleep(0.01)
    slow_proxy.cut()
    assert await asked is StoreErrorKind.LOST
    slow_proxy.delay_s = 0.0
    assert LIMIT - 3 <= await left(window, 1) <= LIMIT - 2, "once or not at all, never twice"


async def test_nobody_listens(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    slow_proxy.refuse()
    window = window_at(slow_proxy.url, redis_prefix)
    answers, took = await timed(asyncio.gather(*(ask(window, user) for user in range(500))))
    assert set(answers) == {StoreErrorKind.UNREACHABLE}
    assert took < SOON_S
