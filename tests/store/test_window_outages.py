"""Answers of a window on a frozen, lost, empty, slow or flapping server."""

from __future__ import annotations

import asyncio

import pytest

from autoglm_throttle.store.protocol import StoreErrorKind
from tests.store.polling import HANG_S, eventually
from tests.store.proxy import SlowProxy
from tests.store.server import RedisServer
from tests.store.store_checks import (
    DEADLINE_S,
    LIMIT,
    answered,
    ask,
    comes_back,
    left,
    prompt_window,
    timed,
    window_at,
)

pytestmark = pytest.mark.server

AWAY = {StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}


async def test_frozen_server_costs_the_deadline_and_no_loop_time(
    own_server: RedisServer, redis_prefix: str
) -> None:
    window = await prompt_window(own_server.url, redis_prefix)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    own_server.pause()
    asked = [await timed(ask(window, 1)) for _ in range(5)]
    crowd = [asyncio.ensure_future(ask(window, user)) for user in range(2, 300)]
    turns = 0
    while not all(one.done() for one in crowd):
        await asyncio.sleep(0)
        turns += 1
    assert [answer for answer, _ in asked] == [StoreErrorKind.TIMEOUT] * 5
    assert min(seconds for _, seconds in asked) >= DEADLINE_S - 0.002
    assert max(seconds for _, seconds in asked) < HANG_S / 2, "by its deadline, not by that of a connection"
    assert {one.result() for one in crowd} == {StoreErrorKind.TIMEOUT}
    assert turns > 20, "other tasks run meanwhile"
    assert set(heard) == {StoreErrorKind.TIMEOUT}
    assert 6 <= len(heard) < 60, "one report for each silence, not for each caller"


async def test_a_server_that_thaws_has_run_nothing_twice(own_server: RedisServer, redis_prefix: str) -> None:
    # A probe of a frozen server takes as long as a connection may.
    window = await prompt_window(own_server.url, redis_prefix, read_s=1.0, connect_s=1.0)
    assert await left(window, 1) == LIMIT - 1
    own_server.pause()
    assert [await ask(window, 1) for _ in range(6)] == [StoreErrorKind.TIMEOUT] * 6
    window.disconnect()
    assert await window.probe() is not None
    own_server.resume()
    await comes_back(window)
    assert LIMIT - 1 - 6 <= await left(window, 1, units=0) <= LIMIT - 1


async def test_killed_server_is_detected_and_used_after_restart(
    own_server: RedisServer, redis_prefix: str
) -> None:
    window = window_at(own_server.url, redis_prefix)
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    assert await left(window, 1) == LIMIT - 1
    assert heard == [None]
    own_server.kill()
    first = await ask(window, 1)
    assert first in AWAY
    second = await ask(window, 1)
    assert second is StoreErrorKind.UNREACHABLE
    assert await window.probe() is StoreErrorKind.UNREACHABLE
    own_server.restart()
    await comes_back(window)
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
        found, took = await timed(asyncio.gather(*(left(window, user) for user in range(1, 20))))
        assert found == [LIMIT - used] * 19
        assert took >= 0.008
    assert slow_proxy.opened <= 2


async def test_slow_server_does_not_mix_answers(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    window = await prompt_window(slow_proxy.url, redis_prefix)
    for user in range(1, 9):
        assert await left(window, user, limit=LIMIT + user) == LIMIT + user - 1
    slow_proxy.delay_s = 4 * DEADLINE_S
    for _ in range(2):
        late = await asyncio.gather(*(ask(window, user, limit=LIMIT + user) for user in range(1, 9)))
        assert late == [StoreErrorKind.TIMEOUT] * 8
    slow_proxy.delay_s = 0.0
    await answered(window)
    for user in range(1, 9):
        assert LIMIT + user - 4 <= await left(window, user, limit=LIMIT + user) <= LIMIT + user - 2
    assert window.stats().late >= 1


async def test_a_server_that_comes_and_goes(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    for used in range(1, 9):
        assert await left(window, 1) == LIMIT - used
        slow_proxy.reject()
        assert {await ask(window, 1) for _ in range(3)} <= AWAY
        slow_proxy.accept()
        await comes_back(window)
    assert window.stats().waiting == 0


async def test_broken_connections_cost_only_calls_in_flight(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    window = window_at(slow_proxy.url, redis_prefix)
    assert await left(window, 1) == LIMIT - 1
    slow_proxy.delay_s = HANG_S
    before = window.stats().sent
    asked = asyncio.ensure_future(ask(window, 1))
    await eventually(lambda: window.stats().sent > before, "it is in flight")
    slow_proxy.cut()
    assert await asked is StoreErrorKind.LOST
    slow_proxy.delay_s = 0.0
    assert LIMIT - 3 <= await left(window, 1) <= LIMIT - 2, "once or not at all, never twice"


async def test_closed_port_is_unreachable(slow_proxy: SlowProxy, redis_prefix: str) -> None:
    slow_proxy.reject()
    window = window_at(slow_proxy.url, redis_prefix)
    found = await asyncio.gather(*(ask(window, user) for user in range(500)))
    assert set(found) == {StoreErrorKind.UNREACHABLE}
