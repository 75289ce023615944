"""The pool of connections, with sockets replaced by plain calls."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import cast

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, connection_pool
from autoglm_throttle.traffic.generator.connection import Connection
from autoglm_throttle.traffic.generator.connection_pool import ConnectionPool
from autoglm_throttle.traffic.generator.target import TargetUrl


class Line:
    """As much of a connection as a pool sees."""

    reusable = True
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def line() -> Connection:
    return cast("Connection", Line())


def pool(monkeypatch: pytest.MonkeyPatch, refusals: int, size: int = 1, more: int = 0) -> ConnectionPool:
    """A pool whose first connection attempts are refused."""
    made = ConnectionPool(TargetUrl(port=1), ClientOptions(connections=size, more_connections=more), line)
    left = refusals

    async def connect() -> None:
        nonlocal left
        if left:
            left -= 1
            raise ConnectionRefusedError
        made.opened(line())

    monkeypatch.setattr(made, "connect", connect)
    monkeypatch.setattr("autoglm_throttle.traffic.generator.connection_pool.BACKOFF_FIRST_S", 0.0)
    return made


async def test_refused_connections_are_retried_until_one_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pool(monkeypatch, refusals=5)
    lines.open_more(1)
    lines.open_more(1)
    (task,) = lines.opening
    await asyncio.wait_for(task, 60.0)
    assert len(lines.open) == 1


async def test_no_more_are_opened_than_the_pool_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pool(monkeypatch, refusals=0, size=2, more=1)
    await lines.connect()
    await lines.connect()
    lines.open_more(10)
    (task,) = lines.opening
    await task
    lines.open_more(10)
    assert len(lines.open) == 3


async def test_closed_pool_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pool(monkeypatch, refusals=10**6)
    lines.open_more(1)
    await asyncio.sleep(0)
    lines.close()
    await asyncio.wait(lines.opening)
    assert not lines.open
    late = line()
    lines.opened(late)
    assert cast("Line", late).aborted


async def test_most_recent_live_connection_comes_first() -> None:
    lines = ConnectionPool(TargetUrl(port=1), ClientOptions(connections=3), line)
    first, second, dead = line(), line(), line()
    for one in (first, second, dead):
        lines.opened(one)
        lines.release(one)
    cast("Line", dead).reusable = False
    assert [lines.acquire(), lines.acquire(), lines.acquire()] == [second, first, None]
    lines.release(first)
    lines.closed(first)
    assert lines.acquire() is None


async def connected_to(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], refused: set[str], size: int = 3
) -> list[str]:
    """The addresses that were tried, of a name that has these."""
    tried: list[str] = []
    made = ConnectionPool(TargetUrl(port=1, host="name.test"), ClientOptions(connections=size), line)

    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 1)) for address in addresses]

    async def connect() -> None:
        tried.append(made.address)
        if made.address in refused:
            raise ConnectionRefusedError(111, "no")
        made.opened(line())

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    monkeypatch.setattr(made, "connect", connect)
    await made.fill()
    return tried


async def test_all_connections_go_to_the_first_address_that_takes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await connected_to(monkeypatch, ["::1", "127.0.0.1"], {"::1"}) == ["::1", *["127.0.0.1"] * 3]
    assert await connected_to(monkeypatch, ["::1", "127.0.0.1"], set()) == ["::1"] * 3
    with pytest.raises(TrafficError, match=r"name\.test:1 refuses connections"):
        await connected_to(monkeypatch, ["::1", "127.0.0.1"], {"::1", "127.0.0.1"})


async def test_unknown_host_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "not in the book")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(TrafficError, match=r"name\.test is not known: not in the book"):
        await ConnectionPool(TargetUrl(port=1, host="name.test"), ClientOptions(), line).fill()


async def test_slow_connect_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.traffic.generator.connection_pool.CONNECT_S", 0.01)
    made = ConnectionPool(TargetUrl(port=1), ClientOptions(connections=7), line)
    monkeypatch.setattr(made, "connect", asyncio.Event().wait)
    with pytest.raises(TrafficError, match=r"did not take 7 connections within 0\.01 s"):
        await made.fill()


def limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []

    def change(_what: int, wanted: tuple[int, int]) -> None:
        if hard != resource.RLIM_INFINITY and wanted[0] > hard:
            raise ValueError
        asked.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _what: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", change)
    return asked


def test_the_soft_limit_is_raised_only_when_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = limits(monkeypatch, 1000, 5000)
    connection_pool.allow_connections(900)
    assert asked == []
    connection_pool.allow_connections(2000)
    assert asked == [(2064, 5000)]
    assert connection_pool.max_connections() == 4936
    with pytest.raises(TrafficError, match="5064 open files are needed and 1000 allowed: ulimit -n 5064"):
        connection_pool.allow_connections(5000)


def test_without_limits_there_is_still_a_sane_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = limits(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    connection_pool.allow_connections(10**6)
    assert asked == []
    assert connection_pool.max_connections() == connection_pool.MAX_WITHOUT_LIMIT


async def test_target_is_unreachable_after_the_grace_period() -> None:
    lines, last = ConnectionPool(TargetUrl(port=1), ClientOptions(), line), line()
    lines.opened(last)
    lines.failed(10.0)
    lines.failed(20.0)
    assert not lines.unreachable
    lines.closed(last)
    lines.failed(30.0)
    lines.failed(30.9)
    assert not lines.unreachable
    lines.failed(31.0)
    told = [lines.unreachable]
    lines.opened(line())
    assert [*told, lines.unreachable] == [True, False]


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".test"])
async def test_invalid_host_name_is_reported(host: str) -> None:
    with pytest.raises(TrafficError, match="cannot be the name of a host"):
        await ConnectionPool(TargetUrl(port=1, host=host), ClientOptions(), line).fill()
