"""A throttle whose user limits are kept in a shared store."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from autoglm_throttle import assembly
from autoglm_throttle.limiting.gate import Ticket
from autoglm_throttle.limiting.shared.outage import State
from autoglm_throttle.limiting.shared.store import Answer, Trouble
from autoglm_throttle.limiting.shared.windows import SharedWindows
from autoglm_throttle.model import Decision, Demand, Priority, Reason
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.throttle import Throttle
from tests.shared.scripted_store import ScriptedStore, granted, refused

ALICE = "a" * 16


class Site:
    """A throttle on a scripted store, with one place unless said otherwise."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *script: Answer | Trouble, places: int = 1, **settings: Any
    ) -> None:
        self.store = ScriptedStore(*script)
        monkeypatch.setattr(assembly, "shared_store", lambda *_: self.store)
        self.clock = ManualClock()
        values: dict[str, Any] = {"user_limit": "10/minute", "redis_url": "redis://nowhere", "gpu": "none"}
        values |= {"policy": "gate", "inflight_start": places, "inflight_floor": 1, "inflight_max": places}
        self.throttle = Throttle(Settings(**values | settings), clock=self.clock, sampling="manual")
        self.tokens = self.left()

    def left(self) -> float:
        return self.throttle.snapshot().tokens[Priority.MID]

    @property
    def in_flight(self) -> int:
        gate = self.throttle.snapshot().gate
        return gate.in_flight if gate is not None else 0

    @property
    def waiting(self) -> int:
        gate = self.throttle.snapshot().gate
        return sum(gate.waiting) if gate is not None else 0

    def nothing_is_held(self) -> bool:
        return self.in_flight == self.waiting == 0 and not any(self.throttle.snapshot().active.values())

    async def admit(self) -> Permit | Rejection:
        return await self.throttle.admit(Demand(user=ALICE))

    async def begun(self) -> asyncio.Task[Permit | Rejection]:
        """A request that has asked the store and waits for it."""
        self.store.gate = asyncio.Event()
        task = asyncio.create_task(self.admit())
        await turns()
        assert self.store.asked
        return task


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_admitted_request_carries_the_stores_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(4))
    permit = await site.admit()
    assert isinstance(permit, Permit)
    assert (permit.decision.policy, permit.decision.remaining) == ("user-60s", 4)
    assert site.in_flight == 1
    assert site.left() == site.tokens - 1
    permit.settle()
    assert site.nothing_is_held()
    assert site.throttle.snapshot().queue_time[Priority.MID].total_s == 0.0


async def test_a_request_that_the_store_refuses_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, refused(2_000_000))
    rejection = await site.admit()
    assert isinstance(rejection, Rejection)
    assert (rejection.decision.reason, rejection.decision.retry_after_s) == (Reason.USER, 2.0)
    assert site.nothing_is_held()
    assert site.left() == site.tokens
    assert site.throttle.snapshot().requests[Priority.MID, "limited", Reason.USER] == 1


async def test_a_slot_is_held_while_the_store_is_asked_and_freed_for_one_who_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch)
    task = await site.begun()
    assert site.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert site.nothing_is_held()
    assert site.left() == site.tokens
    assert site.throttle.snapshot().hints["left_in_line"] == 0


async def test_the_store_is_asked_while_the_request_stands_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    second = await site.begun()
    assert site.waiting == 1
    assert site.store.gate is not None
    site.store.gate.set()
    await turns()
    assert not second.done()
    first.settle()
    permit = await second
    assert isinstance(permit, Permit)
    assert permit.decision.remaining == 7
    permit.settle()
    assert site.nothing_is_held()


async def test_one_in_line_whose_turn_comes_before_the_stores_word_is_admitted_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    second = await site.begun()
    assert isinstance(first, Permit)
    first.settle()
    await turns()
    assert not second.done()
    assert site.store.gate is not None
    site.store.gate.set()
    permit = await second
    assert isinstance(permit, Permit)
    permit.settle()
    assert site.nothing_is_held()


async def test_one_in_line_whom_the_store_refuses_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(8), refused())
    first = await site.admit()
    assert isinstance(first, Permit)
    rejection = await site.admit()
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.USER
    assert site.waiting == 0
    first.settle()
    assert site.nothing_is_held()
    assert site.left() == pytest.approx(site.tokens - 1)


async def test_one_who_leaves_the_line_is_given_its_units_back(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    second = asyncio.create_task(site.admit())
    await turns()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    first.settle()
    assert site.nothing_is_held()
    assert site.throttle.snapshot().hints["left_in_line"] == 1


async def test_one_who_waits_in_vain_is_given_its_units_back(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(8), granted(7), slo_s=2.0)
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    waiting = asyncio.create_task(site.throttle.wait(ticket))
    await turns()
    site.clock.advance(60.0)
    site.throttle.regime()
    site.throttle.called()
    rejection = await waiting
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.QUEUE
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    first.settle()


async def test_a_ticket_given_up_while_the_store_is_asked_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch, granted(7))
    site.store.gate = asyncio.Event()
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    waiting = asyncio.create_task(site.throttle.wait(ticket))
    await turns()
    site.throttle.leave(ticket)
    site.store.gate.set()
    with pytest.raises(ValueError, match="given up"):
        await waiting
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    assert site.nothing_is_held()


async def test_a_request_that_holds_no_slot_frees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(9), refused())
    first = await site.admit()
    assert isinstance(first, Permit)
    rejection = await site.throttle.admit(Demand(user=ALICE, holds_slot=False))
    assert isinstance(rejection, Rejection)
    assert site.in_flight == 1
    first.settle()
    assert site.nothing_is_held()


@pytest.mark.parametrize("policy", ["fixed", "tiers"])
async def test_a_bound_without_a_line_gets_its_slot_back(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    site = Site(monkeypatch, refused(), granted(3), policy=policy)
    assert isinstance(await site.admit(), Rejection)
    assert site.in_flight == 0
    site.clock.advance(1.0)
    permit = await site.admit()
    assert isinstance(permit, Permit)
    assert site.in_flight == 1


async def test_a_dry_run_asks_and_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(), refused(), granted(), dry_run=True)
    permits = [await site.admit()]
    permits.append(await site.admit())
    site.clock.advance(1.0)
    permits.append(await site.admit())
    assert all(isinstance(permit, Permit) for permit in permits)
    would = [permit.decision.would for permit in permits]
    assert isinstance(would[1], Decision)
    assert would[1].reason is Reason.USER
    assert site.in_flight == 3
    for permit in permits:
        assert isinstance(permit, Permit)
        permit.settle()
    assert site.nothing_is_held()


async def test_called_decides_without_the_store_for_one_who_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch, granted())
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    ((heard, permit),) = site.throttle.called()
    assert heard is ticket
    assert isinstance(permit, Permit)
    permit.settle()
    assert site.nothing_is_held()
    assert len(site.store.asked) == 1


async def test_called_may_refuse_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, granted(), redis_on_error="deny")
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    ((_, rejection),) = site.throttle.called()
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.STORE
    assert site.nothing_is_held()


def test_without_an_event_loop_the_process_decides_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, user_limit="1/minute")
    permit = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(permit, Permit)
    permit.settle()
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Rejection)
    assert not site.store.asked


async def test_an_outage_is_logged_once_and_its_end_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site = Site(monkeypatch, *[Trouble.TIMEOUT] * 3, places=50)
    site.throttle.start()
    await turns()
    site.store.probes = [Trouble.TIMEOUT, None]
    for _ in range(10):
        assert isinstance(await site.admit(), Permit)
    store = site.throttle.snapshot().store
    assert store is not None
    assert (store.state, store.why, store.fallbacks[Trouble.TIMEOUT]) == (State.LOCAL, Trouble.TIMEOUT, 10)
    for _ in range(2):
        site.clock.advance(1.3)
        await site.admit()
        await turns()
    changes = [record for record in caplog.records if getattr(record, "event", "").startswith("store_")]
    lines = [record.getMessage() for record in changes]
    assert len(lines) == 2
    assert "scripted cannot be asked: timeout; each process goes by 1/1 of the user limits" in lines[0]
    assert "answers again after 2.6 s" in lines[1]
    assert site.store.probed == 3
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Ticket)


async def test_the_store_is_connected_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    site.store.probes = [Trouble.UNREACHABLE]
    site.throttle.start()
    await turns()
    store = site.throttle.snapshot().store
    assert store is not None
    assert store.state is State.LOCAL
    assert isinstance(await site.admit(), Permit)
    assert not site.store.asked


async def test_a_probe_without_a_loop_fails_and_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, Trouble.UNREACHABLE)
    await site.admit()
    site.clock.advance(2.0)
    thread = threading.Thread(target=lambda: site.throttle.try_admit(Demand(user=ALICE)))
    thread.start()
    thread.join()
    assert site.store.probed == 0
    site.clock.advance(2.0)
    site.throttle.try_admit(Demand(user=ALICE))
    await turns()
    assert site.store.probed == 1


@pytest.mark.parametrize("on_error", ["local", "allow"])
async def test_a_service_that_refuses_nobody_finds_its_store_again(
    monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    site = Site(monkeypatch, Trouble.UNREACHABLE, places=50, redis_on_error=on_error)
    site.throttle.start()
    await turns()
    assert isinstance(await site.admit(), Permit)
    site.clock.advance(1.3)
    assert isinstance(await site.admit(), Permit)
    await turns()
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Ticket)


async def test_a_probe_is_left_to_who_has_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler and a scrape come by on threads of their own."""
    site = Site(monkeypatch)
    site.throttle.start()
    await turns()
    windows = site.throttle._windows
    assert isinstance(windows, SharedWindows)

    def due() -> bool:
        return windows.probe_due

    windows.probe_due = True
    await asyncio.to_thread(site.throttle.snapshot)
    assert due()
    assert site.store.probed == 1
    site.throttle.snapshot()
    await turns()
    assert not due()
    assert site.store.probed == 2


async def test_a_ticket_called_before_it_was_waited_for_is_heard_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    permit = await site.throttle.wait(ticket)
    assert isinstance(permit, Permit)
    assert site.throttle.called() == []
    permit.settle()
    assert site.nothing_is_held()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_lets_the_parents_connections_be(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch)
    site.throttle.try_admit(Demand(user=ALICE))
    child = os.fork()
    if not child:
        view = site.throttle.snapshot().store
        fresh = view is not None and not any(view.fallbacks.values())
        os._exit(0 if site.store.forgotten == 1 and fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert site.store.forgotten == 0


def sharing(server: FakeServer) -> Callable[[], FakeAsyncRedis]:
    return lambda: FakeAsyncRedis(server=server)


@pytest.mark.parametrize("limit", ["5/minute", "3/second;5/minute", "2000/minute"])
async def test_two_processes_on_one_store_keep_one_limit(limit: str) -> None:
    server = FakeServer()
    throttles = [Throttle(Settings(user_limit=limit, gpu="none"), redis=sharing(server)) for _ in range(2)]
    cost = 400.0 if limit.startswith("2000") else 1.0
    asked = [throttle.admit(Demand(Priority.HIGH, ALICE, cost)) for throttle in throttles * 6]
    verdicts = await asyncio.gather(*asked)
    wanted = 3 if "second" in limit else 5
    if cost > 1.0:  # a bucket of high holds 1000 tokens, so each process can charge but two
        wanted = 4
    assert sum(verdict.admitted for verdict in verdicts) == wanted


def test_a_store_that_nothing_uses_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autoglm_throttle")
    throttle = Throttle(Settings(redis_url="redis://127.0.0.1:1", gpu="none", key_secret="0123456789abcdef"))
    throttle.start()
    assert throttle.snapshot().store is None
    assert any("nothing uses it" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("approximate", [True, False])
def test_a_store_that_does_not_count_exactly_is_told_once_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, approximate: bool
) -> None:
    monkeypatch.setattr(ScriptedStore, "approximate", approximate)
    site = Site(monkeypatch)
    site.throttle.start()
    site.throttle.start()
    said = [record.getMessage() for record in caplog.records if "approximately" in record.getMessage()]
    wanted = "scripted counts user limits approximately: up to 1.97 times a limit may pass in one window"
    assert said == [wanted] * approximate
