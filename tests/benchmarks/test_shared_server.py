"""Measurements on a real server: its counters, the floor, the candidates, and cancelled callers."""

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.shared import cancelled, throughput
from benchmarks.shared.bench import LIMIT, USERS, RedisBench, Scale
from benchmarks.shared.candidate import SCRIPTS
from benchmarks.shared.drive import Hit
from benchmarks.shared.floor import FLOORS, Floor
from benchmarks.shared.rows import CANDIDATES, LONG_DEADLINE
from tests.store.server import RedisServer, newest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

TINY = Scale(rounds=1, warm_s=0.01, row_s=0.03, open_s=0.05, open_rounds=1)


@pytest.fixture(scope="module")
def bench() -> Iterator[RedisBench]:
    with RedisServer(newest()) as server:
        yield RedisBench(server, TINY)


def test_gauge_counts_client_commands_without_its_own(bench: RedisBench) -> None:
    bench.gauge.empty()
    before = bench.gauge.read()
    for _ in range(3):
        bench.server.command("EVAL", "return redis.call('GET', KEYS[1])", 1, "k")
    after = bench.gauge.read()
    assert after.sent(before, SCRIPTS) == 3
    assert after.sent(before, ("get",)) == 3
    assert after.opened - before.opened == 3
    assert after.clients == before.clients == 0
    assert after.cpu_s >= before.cpu_s


def test_an_emptied_server_has_no_keys_and_knows_its_scripts(bench: RedisBench) -> None:
    sha = bench.server.command("SCRIPT", "LOAD", "return 7")
    bench.server.command("SET", "k", "v" * 1_000_000)
    held = bench.gauge.used()
    bench.gauge.empty()
    assert bench.server.command("DBSIZE") == 0
    assert held - bench.gauge.used() > 900_000
    assert bench.server.command("EVALSHA", sha, 0) == 7


@pytest.mark.parametrize(("name", "trips"), [("floor", 1.0), ("floor-batch", 1 / 8)])
def test_floor_admits_each_user_up_to_the_limit(
    bench: RedisBench, monkeypatch: pytest.MonkeyPatch, name: str, trips: float
) -> None:
    monkeypatch.setattr(throughput, "MOST_BATCHES", 100)
    scale = Scale(rounds=1, depths=(8,), warm_s=0.0, row_s=0.02)
    seen = throughput.decisions(RedisBench(bench.server, scale), {"store": LONG_DEADLINE["store"]})
    row = seen["8"]["rows"][name]
    assert row["round_trips"] == pytest.approx(trips)
    assert (row["connections"], row["refused"], row["errors"]) == (1, 0, {})
    assert row["ours_over_it"] > 0.0
    floor = Floor(bench.server.port, [FLOORS[name](USERS[:1] * 8, LIMIT)])
    bench.gauge.empty()
    try:
        tally = floor.run(0.02)
    finally:
        floor.close()
    assert tally.admitted == min(LIMIT.limit, tally.decisions)


@pytest.mark.parametrize(
    "name", ["store", "throttle", "moving-raised", "moving-blocking", "fixed", "throttled", "each"]
)
def test_every_contestant_admits_the_limit_and_no_more(bench: RedisBench, name: str) -> None:
    candidate = LONG_DEADLINE.get(name) or CANDIDATES[name]

    async def run() -> tuple[list[bool], int]:
        async with bench.opened(candidate) as hit:
            await hit("other")
            before = bench.gauge.read()
            answers = [await hit("u" * 16, 50) for _ in range(3)]
            return answers, bench.gauge.read().sent(before, candidate.sends)

    answers, sent = asyncio.run(run())
    assert answers == [True, True, False]
    assert sent == 3 or (
        name == "throttle" and sent == 4
    )  # when it starts it connects in the background, too
    assert bench.gauge.read().clients in (0, 1)


async def test_staying_clients_are_distinguished_from_leaving_ones() -> None:
    requested: list[str] = []

    async def hit(user: str, units: int = 1) -> bool:
        await asyncio.sleep(0)
        requested.append(user)
        await asyncio.sleep(0.001)
        return int(user) % 2 == 0

    users = [f"{number}" for number in range(200)]
    calm = await cancelled.run(hit, users)
    assert (calm["right"], calm["wrong"], calm["cancelled"]) == (200, 0, 0)
    assert sorted(requested, key=int) == users
    disturbed = await cancelled.run(hit, users, 0.001)
    assert disturbed["right"] + disturbed["cancelled"] == 200
    assert 0 < disturbed["cancelled"] < 200


async def test_foreign_reply_is_wrong() -> None:
    async def swapped(user: str, units: int = 1) -> bool:
        if user == "3":
            raise ConnectionError
        return int(user) % 2 == (1 if user in ("10", "11") else 0)

    hit: Hit = swapped
    results = await cancelled.run(hit, [f"{number}" for number in range(20)])
    assert (results["wrong"], results["right"], results["errors"]) == (2, 17, {"ConnectionError": 1})
