"""``fleet_gpu.lua``: one publisher for a host, ages of one clock, nothing that stays."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import fakeredis
import pytest
import redis

from tests.store.server import RedisServer

SCRIPT = resources.files("autoglm_throttle.store").joinpath("fleet_gpu.lua").read_text("utf-8")
TIMED = SCRIPT.replace("redis.call('TIME')", "{ KEYS[2], KEYS[3] }")
SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


class Hash:
    """One hash of a server, on a clock of the test."""

    def __init__(self, client: Any, key: str) -> None:
        self.client, self.key = client, key
        self.clock_us = START_US

    def read(
        self, host: str, process: str = "p", payload: str = "x y", interval_s: float = 1.0
    ) -> dict[str, Any]:
        seconds, micros = divmod(self.clock_us, SECOND)
        arguments = (host, process, round(interval_s * SECOND), payload)
        reply = self.client.eval(TIMED, 3, self.key, seconds, micros, *arguments)
        return {
            name.decode(): (age, text.decode()) for name, age, text in zip(*[iter(reply)] * 3, strict=True)
        }


@pytest.fixture(params=["real", "double"])
def one(request: pytest.FixtureRequest, redis_server: RedisServer, redis_prefix: str) -> Iterator[Hash]:
    if request.param == "double":
        yield Hash(fakeredis.FakeRedis(), "gpu")
        return
    with redis.Redis(port=redis_server.port, protocol=2) as client:
        yield Hash(client, f"{redis_prefix}:{{fleet}}:gpu")


def test_the_clock_is_read_once() -> None:
    assert SCRIPT.count("'TIME'") == 1
    assert TIMED != SCRIPT


def test_each_host_reads_others_rows_and_ages(one: Hash) -> None:
    assert one.read("a", payload='{"a b":1}\n') == {}
    one.clock_us += 250_000
    assert one.read("b", payload="of b") == {"a": (250_000, '{"a b":1}\n')}
    one.clock_us += 1
    assert one.read("a") == {"b": (1, "of b")}


def test_host_without_rows_only_reads(one: Hash) -> None:
    assert one.read("gateway", payload="") == {}
    assert one.client.exists(one.key) == 0
    one.read("a")
    assert list(one.read("gateway", payload="")) == ["a"]
    assert list(one.read("b")) == ["a"]


def test_one_process_of_a_host_publishes_and_another_takes_over(one: Hash) -> None:
    one.read("a", "first", "of the first")
    one.clock_us += SECOND
    one.read("a", "second", "of the second")
    assert one.read("b")["a"][1] == "of the first"
    one.clock_us += SECOND // 2
    one.read("a", "second", "of the second")
    assert one.read("b")["a"] == (0, "of the second")
    one.read("a", "first", "of the first again")
    assert one.read("b")["a"][1] == "of the second"


def test_rows_expire_after_a_minute(one: Hash) -> None:
    one.read("a")
    assert 0 < one.client.pttl(one.key) <= 60_000
    one.clock_us += 60 * SECOND
    assert one.read("b") == {"a": (60 * SECOND, "x y")}
    one.clock_us += 1
    assert one.read("b") == {}
    assert one.client.hkeys(one.key) == [b"b"]


def test_backward_clock_makes_no_row_younger(one: Hash) -> None:
    one.read("dead")
    one.read("a", "first")
    one.clock_us -= 30 * SECOND
    assert one.read("b") == {}
    one.read("a", "second", "at once")
    assert one.read("b") == {"a": (0, "at once")}


def test_something_else_in_the_hash_is_thrown_out(one: Hash) -> None:
    one.client.hset(one.key, "odd", "not ours")
    one.client.hset(one.key, "a", "")
    assert one.read("a") == {}
    assert one.client.hkeys(one.key) == [b"a"]
