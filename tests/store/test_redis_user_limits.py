"""The window's own part: loops, callers that leave, charges of several servers, probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import trio
from pydantic import SecretStr

from autoglm_throttle.settings.groups.store import StoreSettings
from autoglm_throttle.store.batch import RedisBatch
from autoglm_throttle.store.protocol import VALUES, Answer, StoreCharge, StoreErrorKind, WindowProtocol
from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
from autoglm_throttle.store.script import LuaScript
from autoglm_throttle.types import UserLimit
from tests.store.batches import passes
from tests.store.cluster import Cluster3
from tests.store.store_checks import charged

PATIENT = StoreSettings(redis_deadline_s=5.0)
TEN = (UserLimit("user-60s", 10, 60),)
TWO = (UserLimit("user-60s", 10, 60), UserLimit("user-3600s", 5000, 3600))


@pytest.fixture
def fake() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


@pytest.fixture
def window(fake: fakeredis.FakeServer) -> RedisUserLimitStore:
    return RedisUserLimitStore(PATIENT, lambda: fakeredis.FakeAsyncRedis(server=fake))


def charge(
    user: int = 1, units: int = 1, limits: tuple[UserLimit, ...] = TEN, kind: str = "user"
) -> StoreCharge:
    return StoreCharge(kind, limits, f"{user:016x}", units)


async def answer_of(window: RedisUserLimitStore, *charges: StoreCharge) -> Answer:
    answer = await charged(window, *charges)
    assert not isinstance(answer, StoreErrorKind), (answer, window.last_error)
    return answer


async def left(window: RedisUserLimitStore, *charges: StoreCharge) -> list[int]:
    """The units that remain in each limit."""
    return list((await answer_of(window, *charges))[1::VALUES])


async def test_charges_all_limits_or_none(window: RedisUserLimitStore) -> None:
    assert await left(window, charge(units=4, limits=TWO)) == [6, 4996]
    assert await left(window, charge(units=7, limits=TWO)) == [6, 4996]
    assert await left(window, charge(units=6, limits=TWO), charge(2)) == [0, 4990, 9]


async def test_refunds_granted_units(window: RedisUserLimitStore) -> None:
    charges = [charge(units=4, limits=TWO), charge(2)]
    window.give_back(window.protocol.build_check(charges), await answer_of(window, *charges))
    assert await left(window, charge(units=0, limits=TWO), charge(2, 0)) == [10, 5000, 10]


async def test_a_foreign_key_is_one_callers_trouble(
    window: RedisUserLimitStore, fake: fakeredis.FakeServer
) -> None:
    client = fakeredis.FakeAsyncRedis(server=fake)
    await client.set(
        WindowProtocol("athr", "default", 16).build_check([charge(1)]).keys[0], "somebody else's"
    )
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)
    answers = await asyncio.gather(*(charged(window, charge(user)) for user in (1, 2)))
    assert answers[0] is StoreErrorKind.FOREIGN
    assert answers[1][1] == 9
    assert heard == [None], "the server has answered"
    await client.aclose()


async def test_a_limit_that_can_never_allow_it_is_no_foreign_key(window: RedisUserLimitStore) -> None:
    answer = await answer_of(window, charge(units=11))
    assert list(answer[:2]) == [-1, 10]


async def test_one_pass_is_one_round_trip(window: RedisUserLimitStore) -> None:
    assert await window.probe() is None
    await asyncio.gather(*(charged(window, charge(user)) for user in range(30)))
    health = window.stats()
    assert (health.calls, health.sent, health.waiting, window.clients.made) == (1, 30, 0, 1)


def batch_of(window: RedisUserLimitStore) -> RedisBatch:
    """The batch of the running loop."""
    batch = window.batch()
    assert batch is not None
    return batch


class Gate:
    """Holds every call back until it is opened."""

    def __init__(self, window: RedisUserLimitStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.called = asyncio.Event()
        self.calls = 0
        batch = batch_of(window)
        self.cluster = batch.script.cluster
        self._send = batch.script
        monkeypatch.setattr(batch, "script", self)

    async def __call__(self, calls: Any, wanted: Any) -> Any:
        self.calls += 1
        self.called.set()
        await self.open.wait()
        return await self._send(calls, wanted)


@pytest.mark.parametrize("moment", ["queued", "in flight", "answered"])
async def test_cancelled_caller_spends_nothing(
    window: RedisUserLimitStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    await left(window, charge(2))
    gate = Gate(window, monkeypatch)
    leaver = asyncio.create_task(charged(window, charge(1)))
    stayer = asyncio.create_task(charged(window, charge(2)))
    await asyncio.sleep(0)
    if moment != "queued":
        await passes(10)
        assert gate.calls == 1
    if moment == "answered":

        def cancel(trouble: StoreErrorKind | None) -> None:
            """The answer is there, and its reader has not run yet."""
            leaver.cancel()

        window.listen(cancel)
    else:
        leaver.cancel()
    gate.open.set()
    assert (await stayer)[1] == 8
    assert leaver.cancelled()
    assert window.stats().late == (moment != "queued")
    assert await left(window, charge(1, 0)) == [10]
    assert window.stats().waiting == 0


def test_a_loop_for_each_caller_shares_the_window(window: RedisUserLimitStore) -> None:
    for used in range(1, 8):
        assert asyncio.run(left(window, charge())) == [10 - used]
    health = window.stats()
    assert (health.calls, health.sent, window.clients.made) == (7, 7, 7)
    assert len(window.batches) == 1, "of loops that are closed nothing is kept but the newest"
    assert health.waiting == 0


def test_a_window_given_back_to_outside_its_loop(window: RedisUserLimitStore) -> None:
    check = window.protocol.build_check([charge()])
    window.give_back(check, [0, 9, 0, 1])  # no loop has ever run: lost, and no error

    async def main() -> None:
        answer = await answer_of(window, charge())
        await asyncio.to_thread(window.give_back, check, answer)
        assert await left(window, charge(units=0)) == [10]

    asyncio.run(main())
    window.give_back(check, [0, 9, 0, 1])  # nor any more


def test_under_trio_there_is_no_client(window: RedisUserLimitStore) -> None:
    heard: list[StoreErrorKind | None] = []
    window.listen(heard.append)

    async def main() -> None:
        assert await charged(window, charge()) is StoreErrorKind.LOOP
        assert await window.probe() is StoreErrorKind.LOOP

    trio.run(main)
    assert heard == [StoreErrorKind.LOOP]


class TestProbe:
    """Whether it would answer."""

    async def test_check_without_limits_charges_nothing(
        self, window: RedisUserLimitStore, fake: fakeredis.FakeServer
    ) -> None:
        assert await window.probe() is None
        client = fakeredis.FakeAsyncRedis(server=fake)
        assert [str(key).split(":")[4] for key in await client.keys()] == ["probe"]
        assert 0 < await client.pttl((await client.keys())[0]) <= 1126  # an eighth longer than its window
        await client.aclose()

    async def test_probe_reports_the_error(
        self, window: RedisUserLimitStore, fake: fakeredis.FakeServer
    ) -> None:
        fake.connected = False
        assert await window.probe() is StoreErrorKind.UNREACHABLE
        assert "onnection" in window.last_error
        fake.connected = True
        assert await window.probe() is None

    @pytest.mark.parametrize("reply", [[], [[1, 2]], StoreErrorKind.READONLY])
    async def test_a_reply_must_be_one(
        self, window: RedisUserLimitStore, monkeypatch: pytest.MonkeyPatch, reply: object
    ) -> None:
        async def replies(*_: object) -> list[object]:
            return [reply]

        monkeypatch.setattr(LuaScript, "__call__", replies)
        assert await window.probe() is (
            reply if isinstance(reply, StoreErrorKind) else StoreErrorKind.CONFUSED
        )

    async def test_waits_no_longer_than_a_decision(
        self, window: RedisUserLimitStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silence(*_: object) -> list[object]:
            await asyncio.Event().wait()
            return []

        monkeypatch.setattr(LuaScript, "__call__", silence)
        window.settings = StoreSettings(redis_deadline_s=0.01)
        assert await window.probe() is StoreErrorKind.TIMEOUT


async def test_error_text_lasts_until_an_answer(
    window: RedisUserLimitStore, fake: fakeredis.FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        fake.connected = False
        assert await charged(window, charge()) in {StoreErrorKind.UNREACHABLE, StoreErrorKind.LOST}
        assert "onnection" in window.last_error
        fake.connected = True
        assert await window.probe() is None
        assert window.last_error == ""
    fake.connected = False
    assert isinstance(await charged(window, charge()), StoreErrorKind)
    assert window.last_error
    Gate(window, monkeypatch)
    batch_of(window).deadline_s = 0.001
    assert await charged(window, charge()) is StoreErrorKind.TIMEOUT
    assert window.last_error == ""


async def test_dropped_it_begins_anew(window: RedisUserLimitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await left(window, charge(2))
    gate = Gate(window, monkeypatch)
    waits = asyncio.create_task(charged(window, charge()))
    await passes(10)
    await asyncio.to_thread(window.disconnect)
    assert await waits is StoreErrorKind.LOST
    gate.open.set()
    assert await left(window, charge(2)) == [8]
    assert window.clients.made == 2


@pytest.fixture
async def spread(
    redis_cluster: Cluster3, redis_prefix: str
) -> tuple[RedisUserLimitStore, Callable[[int, int], list[StoreCharge]]]:
    """A window of a cluster, and charges of a user and an address that lie in different partitions."""
    settings = StoreSettings(
        redis_url=SecretStr(redis_cluster.url),
        redis_prefix=redis_prefix,
        redis_deadline_s=5.0,
        redis_connect_s=5.0,
        redis_read_s=5.0,
    )
    window = RedisUserLimitStore(settings)

    def charges(of_user: int, of_address: int) -> list[StoreCharge]:
        return [charge(1, of_user), charge(2, of_address, TWO, "address")]

    assert window.protocol.build_check(charges(1, 1)).tag == -1
    return window, charges


@pytest.mark.server
class TestDifferentServers:
    """One request whose keys no script can touch together."""

    async def test_allowed_by_both(self, spread: Any) -> None:
        window, charges = spread
        assert await left(window, *charges(3, 4)) == [7, 6, 4996]

    async def test_second_server_rejection_refunds_the_first(self, spread: Any) -> None:
        window, charges = spread
        answer = await answer_of(window, *charges(11, 4))
        assert [wait == 0 for wait in answer[::VALUES]] == [False, True, True]
        assert list(answer[1::VALUES]) == [10, 10, 5000]
        assert await left(window, *charges(0, 0)) == [10, 10, 5000]

    async def test_address_rejection_only_reads_the_user(self, spread: Any) -> None:
        window, charges = spread
        await left(window, *charges(1, 1))
        answer = await answer_of(window, *charges(1, 10))
        assert [wait == 0 for wait in answer[::VALUES]] == [True, False, True]
        assert list(answer[1::VALUES]) == [9, 9, 4999]
        assert await left(window, *charges(0, 0)) == [9, 9, 4999]

    async def test_given_back_in_parts(self, spread: Any) -> None:
        window, charges = spread
        answer = await answer_of(window, *charges(3, 4))
        window.give_back(window.protocol.build_check(charges(3, 4)), answer)
        assert await left(window, *charges(0, 0)) == [10, 10, 5000]

    async def test_trouble_with_the_second_gives_the_first_back(
        self, spread: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        window, charges = spread
        await left(window, *charges(0, 0))
        serve, seen = LuaScript.__call__, []

        async def second_fails(script: LuaScript, calls: Any, wanted: Any) -> Any:
            seen.append(calls)
            return [StoreErrorKind.BUSY] if len(seen) == 2 else await serve(script, calls, wanted)

        monkeypatch.setattr(LuaScript, "__call__", second_fails)
        assert await charged(window, *charges(1, 1)) is StoreErrorKind.BUSY
        assert await left(window, *charges(0, 0)) == [10, 10, 5000]

    async def test_a_caller_that_leaves_between_the_two_has_spent_nothing(
        self, spread: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        window, charges = spread
        await left(window, *charges(0, 0))
        gate = Gate(window, monkeypatch)
        gate.open.set()
        task = asyncio.create_task(charged(window, *charges(1, 1)))
        await gate.called.wait()
        gate.open.clear()
        gate.called.clear()
        await gate.called.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        gate.open.set()
        while window.stats().waiting:  # the refund has a connection of its own
            await passes(1)
        assert await left(window, *charges(0, 0)) == [10, 10, 5000]

    async def test_probed_everywhere(self, spread: Any, redis_cluster: Cluster3, redis_prefix: str) -> None:
        window, _ = spread
        assert await window.probe() is None
        found = [node.command("KEYS", f"{redis_prefix}:*:probe:*") for node in redis_cluster.nodes]
        assert all(found)
