"""A throttle with user limits in a shared store."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.settings import Settings
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Decision, Demand, Priority, Reason
from tests.admission.scripted_throttle import ALICE, ScriptedThrottle, iterations
from tests.store.scripted_store import denied, granted


async def test_an_admitted_request_carries_the_stores_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(4))
    permit = await site.admit()
    assert isinstance(permit, Permit)
    assert (permit.decision.policy, permit.decision.remaining) == ("user-60s", 4)
    assert site.in_flight == 1
    assert site.left() == site.tokens - 1
    permit.settle()
    assert site.is_empty()
    assert site.throttle.snapshot().queue_time[Priority.MID].total_s == 0.0


async def test_store_rejection_charges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, denied(2_000_000))
    rejection = await site.admit()
    assert isinstance(rejection, Rejection)
    assert (rejection.decision.reason, rejection.decision.retry_after_s) == (Reason.USER, 2.0)
    assert site.is_empty()
    assert site.left() == site.tokens
    assert site.throttle.snapshot().requests[Priority.MID, "limited", Reason.USER] == 1


async def test_a_ticket_that_has_become_a_permit_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(4))
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    permit = await site.throttle.wait(ticket)
    assert isinstance(permit, Permit)
    site.throttle.leave(ticket)
    assert site.in_flight == 1
    assert site.left() == site.tokens - 1
    assert site.store.given_back == []


async def test_store_rejection_is_logged_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    site = ScriptedThrottle(monkeypatch, denied())
    await site.admit()
    assert any("limited (user:" in record.getMessage() for record in caplog.records)


async def test_slot_is_held_during_the_check_and_released_on_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ScriptedThrottle(monkeypatch)
    task = await site.started_check()
    assert site.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [tuple(request.charges) for request in site.store.abandoned] == site.store.charged
    assert site.is_empty()
    assert site.left() == site.tokens
    assert site.throttle.snapshot().oddities["disconnected_in_queue"] == 0


async def test_store_is_checked_while_the_request_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    second = await site.started_check()
    assert site.waiting == 1
    assert site.store.hold is not None
    site.store.hold.set()
    await iterations()
    assert not second.done()
    first.settle()
    permit = await second
    assert isinstance(permit, Permit)
    assert permit.decision.remaining == 7
    permit.settle()
    assert site.is_empty()


async def test_called_before_the_store_reply_is_admitted_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    second = await site.started_check()
    assert isinstance(first, Permit)
    first.settle()
    await iterations()
    assert not second.done()
    assert site.store.hold is not None
    site.store.hold.set()
    permit = await second
    assert isinstance(permit, Permit)
    permit.settle()
    assert site.is_empty()


async def test_store_rejection_in_the_queue_frees_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), denied())
    first = await site.admit()
    assert isinstance(first, Permit)
    rejection = await site.admit()
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.USER
    assert site.waiting == 0
    first.settle()
    assert site.is_empty()
    assert site.left() == pytest.approx(site.tokens - 1)


async def test_cancelled_in_the_queue_refunds_units(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    second = asyncio.create_task(site.admit())
    await iterations()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    first.settle()
    assert site.is_empty()
    assert site.throttle.snapshot().oddities["disconnected_in_queue"] == 1


async def test_queue_timeout_refunds_units(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), granted(7), slo_s=2.0)
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    waiting = asyncio.create_task(site.throttle.wait(ticket))
    await iterations()
    site.clock.advance(60.0)
    site.throttle.control_state()
    site.throttle.called()
    rejection = await waiting
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.QUEUE
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    first.settle()


async def test_ticket_cancelled_during_the_check_is_refunded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ScriptedThrottle(monkeypatch, granted(7))
    site.store.hold = asyncio.Event()
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    waiting = asyncio.create_task(site.throttle.wait(ticket))
    await iterations()
    site.throttle.leave(ticket)
    site.store.hold.set()
    with pytest.raises(ValueError, match="was cancelled"):
        await waiting
    assert [answer for _, answer in site.store.given_back] == [granted(7)]
    assert site.is_empty()


async def test_a_request_that_holds_no_slot_frees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(9), denied())
    first = await site.admit()
    assert isinstance(first, Permit)
    rejection = await site.throttle.admit(Demand(user=ALICE, holds_slot=False))
    assert isinstance(rejection, Rejection)
    assert site.in_flight == 1
    first.settle()
    assert site.is_empty()


@pytest.mark.parametrize("policy", ["fixed", "tiers"])
async def test_fixed_limit_without_queue_gets_its_slot_back(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    site = ScriptedThrottle(monkeypatch, denied(), granted(3), policy=policy)
    assert isinstance(await site.admit(), Rejection)
    assert site.in_flight == 0
    site.clock.advance(1.0)
    permit = await site.admit()
    assert isinstance(permit, Permit)
    assert site.in_flight == 1


async def test_dry_run_checks_the_store_and_only_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(), denied(), granted(), dry_run=True)
    permits = [await site.admit()]
    permits.append(await site.admit())
    site.clock.advance(1.0)
    permits.append(await site.admit())
    assert all(isinstance(permit, Permit) for permit in permits)
    would = [permit.decision.would_reject for permit in permits]
    assert isinstance(would[1], Decision)
    assert would[1].reason is Reason.USER
    assert site.in_flight == 3
    for permit in permits:
        assert isinstance(permit, Permit)
        permit.settle()
    assert site.is_empty()


async def test_called_decides_without_the_store_for_a_non_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ScriptedThrottle(monkeypatch, granted())
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    ((returned, permit),) = site.throttle.called()
    assert returned is ticket
    assert isinstance(permit, Permit)
    permit.settle()
    assert site.is_empty()
    assert len(site.store.charged) == 1


async def test_called_may_reject_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, granted(), redis_on_error="deny")
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    ((_, rejection),) = site.throttle.called()
    assert isinstance(rejection, Rejection)
    assert rejection.decision.reason is Reason.STORE
    assert site.is_empty()


def test_without_an_event_loop_the_process_decides_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    site = ScriptedThrottle(monkeypatch, user_limit="1/minute")
    permit = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(permit, Permit)
    permit.settle()
    assert isinstance(site.throttle.try_admit(Demand(user=ALICE)), Rejection)
    assert not site.store.charged


async def test_ticket_called_before_the_wait_is_returned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ScriptedThrottle(monkeypatch, granted(8), granted(7))
    first = await site.admit()
    assert isinstance(first, Permit)
    ticket = site.throttle.try_admit(Demand(user=ALICE))
    assert isinstance(ticket, Ticket)
    first.settle()
    permit = await site.throttle.wait(ticket)
    assert isinstance(permit, Permit)
    assert site.throttle.called() == []
    permit.settle()
    assert site.is_empty()


def sharing(server: FakeServer) -> Callable[[], FakeAsyncRedis]:
    return lambda: FakeAsyncRedis(server=server)


@pytest.mark.parametrize("limit", ["5/minute", "3/second;5/minute", "2000/minute"])
async def test_two_processes_on_one_store_keep_one_limit(limit: str) -> None:
    server = FakeServer()
    throttles = [Throttle(Settings(user_limit=limit, gpu="none"), redis=sharing(server)) for _ in range(2)]
    cost = 400.0 if limit.startswith("2000") else 1.0
    charged = [throttle.admit(Demand(Priority.HIGH, ALICE, cost)) for throttle in throttles * 6]
    verdicts = await asyncio.gather(*charged)
    wanted = 3 if "second" in limit else 5
    if cost > 1.0:  # a bucket of high holds 1000 tokens, so each process can charge but two
        wanted = 4
    assert sum(verdict.admitted for verdict in verdicts) == wanted
