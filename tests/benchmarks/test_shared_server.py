"""What is measured on a real server: its counters, the floor, the contestants, and who goes away."""

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.shared import cancelled, pace
from benchmarks.shared.contestant import SCRIPTS
from benchmarks.shared.drive import Hit
from benchmarks.shared.floor import FLOORS, Floor
from benchmarks.shared.lab import LIMIT, USERS, Lab, Scale
from benchmarks.shared.rows import CONTESTANTS, PATIENT
from tests.store.server import RedisServer, newest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("load")]

TINY = Scale(rounds=1, warm_s=0.01, row_s=0.03, open_s=0.05, open_rounds=1)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with RedisServer(newest()) as server:
        yield Lab(server, TINY)


def test_gauge_counts_client_commands_without_its_own(lab: Lab) -> None:
    lab.gauge.empty()
    before = lab.gauge.read()
    for _ in range(3):
        lab.server.command("EVAL", "return redis.call('GET', KEYS[1])", 1, "k")
    after = lab.gauge.read()
    assert after.sent(before, SCRIPTS) == 3
    assert after.sent(before, ("get",)) == 3
    assert after.opened - before.opened == 3
    assert after.clients == before.clients == 0
    assert after.cpu_s >= before.cpu_s


def test_an_emptied_server_has_no_keys_and_knows_its_scripts(lab: Lab) -> None:
    sha = lab.server.command("SCRIPT", "LOAD", "return 7")
    lab.server.command("SET", "k", "v" * 1_000_000)
    held = lab.gauge.used()
    lab.gauge.empty()
    assert lab.server.command("DBSIZE") == 0
    assert held - lab.gauge.used() > 900_000
    assert lab.server.command("EVALSHA", sha, 0) == 7


@pytest.mark.parametrize(("name", "trips"), [("floor", 1.0), ("floor-batch", 1 / 8)])
def test_floor_admits_each_user_up_to_the_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, trips: float
) -> None:
    monkeypatch.setattr(pace, "MOST_BATCHES", 100)
    scale = Scale(rounds=1, depths=(8,), warm_s=0.0, row_s=0.02)
    seen = pace.decisions(Lab(lab.server, scale), {"store": PATIENT["store"]})
    row = seen["8"]["rows"][name]
    assert row["round_trips"] == pytest.approx(trips)
    assert (row["connections"], row["refused"], row["errors"]) == (1, 0, {})
    assert row["ours_over_it"] > 0.0
    floor = Floor(lab.server.port, [FLOORS[name](USERS[:1] * 8, LIMIT)])
    lab.gauge.empty()
    try:
        tally = floor.run(0.02)
    finally:
        floor.close()
    assert tally.admitted == min(LIMIT.limit, tally.decisions)


@pytest.mark.parametrize(
    "name", ["store", "throttle", "moving-raised", "moving-blocking", "fixed", "throttled", "each"]
)
def test_every_contestant_admits_the_limit_and_no_more(lab: Lab, name: str) -> None:
    who = PATIENT.get(name) or CONTESTANTS[name]

    async def run() -> tuple[list[bool], int]:
        async with lab.opened(who) as hit:
            await hit("other")
            before = lab.gauge.read()
            answers = [await hit("u" * 16, 50) for _ in range(3)]
            return answers, lab.gauge.read().sent(before, who.sends)

    answers, sent = asyncio.run(run())
    assert answers == [True, True, False]
    assert sent == 3 or (
        name == "throttle" and sent == 4
    )  # when it starts it connects in the background, too
    assert lab.gauge.read().clients in (0, 1)


async def test_staying_clients_are_distinguished_from_leaving_ones() -> None:
    asked: list[str] = []

    async def hit(user: str, units: int = 1) -> bool:
        await asyncio.sleep(0)
        asked.append(user)
        await asyncio.sleep(0.001)
        return int(user) % 2 == 0

    users = [f"{number}" for number in range(200)]
    calm = await cancelled.run(hit, users)
    assert (calm["right"], calm["wrong"], calm["cancelled"]) == (200, 0, 0)
    assert sorted(asked, key=int) == users
    rough = await cancelled.run(hit, users, 0.001)
    assert rough["right"] + rough["cancelled"] == 200
    assert 0 < rough["cancelled"] < 200


async def test_foreign_reply_is_wrong() -> None:
    async def swapped(user: str, units: int = 1) -> bool:
        if user == "3":
            raise ConnectionError
        return int(user) % 2 == (1 if user in ("10", "11") else 0)

    hit: Hit = swapped
    heard = await cancelled.run(hit, [f"{number}" for number in range(20)])
    assert (heard["wrong"], heard["right"], heard["errors"]) == (2, 17, {"ConnectionError": 1})
