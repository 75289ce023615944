"""Slots of users on a shared store: taken in the check of the user limits, freed with a later call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer

from autoglm_throttle import Demand, Permit, Rejection, Settings, Throttle
from autoglm_throttle.limiting.user_limits import NO_LIMIT
from autoglm_throttle.store.protocol import StoreErrorKind, WindowProtocol
from autoglm_throttle.types import SLOT_HOLD_S, Decision
from tests.store.checking_processes import Crowd
from tests.store.polling import eventually
from tests.store.real_server import PATIENTLY, Site
from tests.store.scripted_store import denied, granted
from tests.store.server import RedisServer
from tests.store.shared_user_limits import ALICE, MINUTE, Shared
from tests.store.store_checks import name

EVENT = Demand(user=ALICE.user, holds_slot=False)
USER = Demand(user=name(1))


def throttle_on(server: FakeServer, **settings: Any) -> Throttle:
    values: dict[str, Any] = {"concurrency_per_user": 2, "gpu": "none", **PATIENTLY}
    return Throttle(Settings(**values | settings), redis=lambda: FakeAsyncRedis(server=server))


def used(server: FakeServer) -> int:
    client: Any = FakeRedis(server=server)
    return sum(client.llen(key) for key in client.keys("*:concurrency.user:l*"))


async def sent(throttle: Throttle) -> Any:
    """Return the counters of the store once nothing waits for it."""
    await eventually(lambda: not throttle.snapshot().store.stats.waiting, "all is sent")  # type: ignore[union-attr]
    store = throttle.snapshot().store
    assert store is not None
    return store.stats


@pytest.mark.parametrize(
    ("limit", "tokens"), [("off", "off"), ("9/minute", "off"), ("9/minute", "99/minute")]
)
async def test_slot_is_taken_without_a_further_call(limit: str, tokens: str) -> None:
    server = FakeServer()
    throttle, other = (throttle_on(server, user_limit=limit, tokens_limit=tokens) for _ in range(2))
    first, second = await throttle.admit(USER), await other.admit(USER)
    assert isinstance(first, Permit)
    assert isinstance(second, Permit)
    assert (await sent(throttle)).calls == 1
    rejection = await throttle.admit(USER)
    assert isinstance(rejection, Rejection)
    assert rejection.decision.detail == "concurrency:user"
    assert isinstance(await throttle.admit(Demand(user=name(2))), Permit)
    second.settle()
    await sent(other)
    assert isinstance(await throttle.admit(USER), Permit), "a denial for want of a slot is not remembered"
    first.settle()
    await sent(throttle)
    assert used(server) == 2


async def test_cancelled_waiters_leave_no_slots() -> None:
    server = FakeServer()
    throttle = throttle_on(server, concurrency_per_user=20, inflight_max=1, slo_s=5, policy="concurrency")
    first = await throttle.admit(USER)
    assert isinstance(first, Permit)
    for turns in range(12):
        task = asyncio.create_task(throttle.admit(USER))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await sent(throttle)
    assert used(server) == 1
    first.settle()
    await sent(throttle)
    assert used(server) == 0


async def test_rejected_further_charge_frees_the_slot_once() -> None:
    server = FakeServer()
    throttle = throttle_on(server, user_limit="3/minute")
    permit, other = [await throttle.admit(USER) for _ in range(2)]
    assert isinstance(permit, Permit)
    assert isinstance(other, Permit)
    further = Demand(user=USER.user, cost=3, holds_slot=False)
    assert await throttle.admission.top_up(permit, further) is not None
    await sent(throttle)
    assert used(server) == 1
    permit.settle()
    await sent(throttle)
    assert used(server) == 1


def test_demand_without_a_slot_is_checked_without_one() -> None:
    shared = Shared(MINUTE, slots=2)
    kinds = [[each.kind for each in shared.question(who, 0.0).entry.charges] for who in (ALICE, EVENT, ALICE)]
    assert kinds == [["user", "concurrency.user"], ["user"], ["user", "concurrency.user"]]
    assert Shared(slots=2).windows.hit(EVENT, 0.0) == NO_LIMIT


def test_slots_are_those_of_this_process_during_an_outage() -> None:
    shared = Shared(slots=3, failures=1)
    shared.processes = 2
    shared.lose(0.0)
    assert [shared.known(ALICE, 0.0).allowed for _ in range(3)] == [True, True, False]
    shared.windows.release(ALICE, None, 1.0)
    assert shared.known(ALICE, 0.0).allowed
    assert shared.store.given_back == []


def test_slot_of_a_check_that_failed_is_counted_here_and_freed_here() -> None:
    shared = Shared(MINUTE, slots=1)
    asked = shared.question(ALICE, 0.0)
    assert asked.resolve(StoreErrorKind.TIMEOUT, 0.0).allowed
    assert not shared.question(ALICE, 0.0).resolve(StoreErrorKind.TIMEOUT, 0.0).allowed
    shared.windows.release(ALICE, asked.charges, 1.0)
    assert shared.question(ALICE, 0.0).resolve(StoreErrorKind.TIMEOUT, 0.0).allowed


def test_freed_slot_is_named_by_its_stamp_and_the_unit_stays() -> None:
    shared = Shared(MINUTE, slots=2)
    asked = shared.question(ALICE, 0.0)
    assert asked.resolve([*granted(9), 0, 1, 300_000_000, 29], 0.0).allowed
    shared.windows.release(ALICE, asked.charges, 40.0)
    ((charges, answer),) = shared.store.given_back
    assert [(each.kind, each.units) for each in charges] == [("concurrency.user", 1)]
    assert list(answer) == [0, 0, 0, 29]
    rejected = shared.question(ALICE, 0.0).resolve([*granted(9), *denied()], 0.0)
    assert isinstance(rejected, Decision)
    assert rejected.retry_after_s == pytest.approx(2.0), "a tenth of 40 s, of one slot of two"


@pytest.mark.parametrize(
    ("answer", "undone"), [([*granted(9), 0, 1, 9, 29], [1]), ([*granted(9), *denied()], [])]
)
def test_late_answer_frees_its_slot_alone(answer: list[int], undone: list[int]) -> None:
    entry = Shared(MINUTE, slots=2).question(ALICE, 0.0).entry
    undo = WindowProtocol("athr", "default", 16).undo(entry, answer, only_slots=True)
    assert ([] if undo is None else list(undo.refunds)) == undone
    assert undo is None or (list(undo.stamps), undo.keys) == ([29], entry.keys[1:])
    without = Shared(MINUTE).question(ALICE, 0.0).entry
    assert WindowProtocol("athr", "default", 16).undo(without, granted(9), only_slots=True) is None


@pytest.mark.server
async def test_slots_of_a_killed_process_are_free_within_the_hold(
    redis_server: RedisServer, redis_prefix: str
) -> None:
    job = {"url": redis_server.url, "prefix": redis_prefix, "slots": 3}
    with Crowd(1, "tests.store.slot_processes") as crowd:
        assert crowd(**job, asks=5) == [3]
    site = await Site(
        redis_server.url, redis_prefix, "100000/minute", concurrency_per_user=4, **PATIENTLY
    ).connected()
    last = await site.throttle.admit(USER)
    assert isinstance(last, Permit)
    assert isinstance(await site.throttle.admit(USER), Rejection)
    (key,) = redis_server.command("KEYS", f"{redis_prefix}:*:concurrency.user:*{USER.user}")
    # Each of them ends by the hold, with or without a process: so does the key, an eighth of it later.
    assert 0 < redis_server.command("PTTL", key) <= SLOT_HOLD_S * 1125 + 1
    assert redis_server.command("LLEN", key) == 4
    last.settle()
    await site.quiet()
    assert redis_server.command("LLEN", key) == 3
