"""The thread of a fleet: hang-proof, fork-safe and restartable, with bounded waits."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import trio

from autoglm_throttle.store.fleet import DEADLINE_S, RIGHTS, FleetSync, LeasedBuckets
from autoglm_throttle.types import Demand, Priority
from tests.store.clients import PATIENCE_S, Wire, names
from tests.store.fleets import MID, admit, beats
from tests.store.polling import until


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "autoglm-throttle-fleet"]


def test_process_sends_heartbeat_despite_blocked_loop(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire, heartbeat_s=0.02)

    async def blocked() -> None:
        fleet.start()
        wire.wait(4)  # the loop stands still meanwhile

    asyncio.run(blocked())
    assert wire.threads == {"autoglm-throttle-fleet"}
    assert wire.calls[0][1] == 60_000, "it lives for three heartbeats"


def test_waiter_is_woken_by_the_answer(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    beats(fleet, wire)

    async def crowd() -> list[tuple[bool, bool]]:
        return await asyncio.gather(*(admit(fleet) for _ in range(50)))

    answers = asyncio.run(crowd())
    assert all(admitted for admitted, _ in answers)
    assert fleet.view().calls <= 10, "those who wait together are asked for together"
    assert not fleet.leases.waiters


def test_waiter_without_granted_tokens_is_rejected_in_time(
    wire: Wire, made: Callable[..., FleetSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    monkeypatch.setattr(LeasedBuckets, "is_decidable", lambda self, demand, now: False)
    begun = time.monotonic()
    asyncio.run(asyncio.wait_for(fleet.ensure(MID), PATIENCE_S))
    assert time.monotonic() - begun >= 0.9 * DEADLINE_S


def test_it_works_under_trio(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    assert fleet.leases.members == 1
    assert trio.run(admit, fleet)[0]


def test_cancelled_waiter_is_removed(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.answers.clear()

    async def cancelled() -> None:
        task = asyncio.ensure_future(fleet.ensure(MID))
        await asyncio.sleep(0)
        assert len(fleet.leases.waiters) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not fleet.leases.waiters


@pytest.mark.parametrize("run", [lambda f, x: asyncio.run(f(x)), trio.run], ids=["asyncio", "trio"])
def test_a_store_that_hangs_costs_50_ms_once_and_then_nothing(
    wire: Wire, made: Callable[..., FleetSync], run: Callable[..., Any]
) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.answers.clear()
    begun = time.monotonic()
    assert run(admit, fleet) == (True, True)
    assert time.monotonic() - begun >= 0.9 * DEADLINE_S
    assert not fleet.leases.is_up

    async def later(fleet: FleetSync) -> list[tuple[bool, bool]]:
        return [await admit(fleet) for _ in range(20)]

    assert run(later, fleet) == [(True, False)] * 20
    wire.answers.set()
    until(
        lambda: fleet.leases.is_up,
        PATIENCE_S,
        "an answer that comes late is still an answer",
    )


@pytest.mark.slow
def test_failed_store_is_retried_and_both_are_logged_once(
    wire: Wire, made: Callable[..., FleetSync], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.error = redis.ConnectionError("gone")
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        assert asyncio.run(admit(fleet))[0], "by its own part"
        until(lambda: fleet.view().failures == 1, PATIENCE_S, "a failure")
        wire.wait(2)
        assert fleet.view().failures <= 2, "not before a second is over"
        wire.error = None
        until(lambda: fleet.leases.is_up, PATIENCE_S, "it is back")
    until(lambda: len(caplog.messages) == 2, PATIENCE_S, "two lines")
    away, back = caplog.messages
    failures = fleet.view().failures
    wire.error = redis.ConnectionError("again")
    fleet.leases.health.next_probe_s = fleet.next_beat_s = 0.0
    fleet.leases.wake()
    until(lambda: fleet.view().failures > failures, PATIENCE_S, "another failure")
    wire.error = None
    until(lambda: fleet.leases.is_up, PATIENCE_S, "it is back")
    assert len(caplog.messages) == 2, "at most one pair of lines in half a minute"
    assert "1/4 of the rates (ConnectionError: gone)" in away
    assert "available again" in back
    assert wire.made == wire.closed + 1
    assert fleet.script.last_error == "ConnectionError: again"


def test_missing_rights_are_named_in_full(
    wire: Wire, made: Callable[..., FleetSync], caplog: pytest.LogCaptureFixture
) -> None:
    wire.error = redis.exceptions.NoPermissionError("NOPERM User x has no permissions")
    made(wire).start()
    until(lambda: caplog.messages, PATIENCE_S, "a line")
    assert RIGHTS in caplog.text


def test_an_answer_of_another_shape_is_a_failure(wire: Wire, made: Callable[..., FleetSync]) -> None:
    wire.answer = lambda arguments: [1, 2, 3]
    fleet = made(wire)
    fleet.start()
    until(lambda: fleet.view().failures, PATIENCE_S, "a failure")
    assert "script answered" in str(fleet.script.last_error)


def test_a_script_that_is_not_there_is_sent(wire: Wire, made: Callable[..., FleetSync]) -> None:
    wire.knows_script = False
    fleet = made(wire)
    beats(fleet, wire)
    assert (fleet.view().failures, wire.knows_script) == (0, True)


def test_tokens_go_back_at_the_end(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    asyncio.run(fleet.ensure(Demand(Priority.MID, cost=40.0)))
    assert fleet.leases.all[1].tokens(0.0) >= 40.0
    fleet.stop(PATIENCE_S)
    assert not threads()
    assert fleet.leases.all[1].tokens(0.0) == 0.0
    assert wire.store.buckets[1][0] == 500_000_000
    assert wire.store.members == {}
    assert wire.closed == 1


def test_unspent_tokens_go_back_without_anybody_asking(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire, lease_s=0.05)
    beats(fleet, wire)
    asyncio.run(fleet.ensure(Demand(Priority.MID, cost=40.0)))
    until(lambda: fleet.leases.all[1].tokens(0.0) == 0.0, PATIENCE_S, "back with the store")


def test_start_twice_is_one_thread_and_after_stop_a_new_one(
    wire: Wire, made: Callable[..., FleetSync]
) -> None:
    fleet = made(wire)
    fleet.start()
    fleet.start()
    (first,) = threads()
    assert first.daemon
    fleet.stop(PATIENCE_S)
    assert threads() == []
    fleet.start()
    (second,) = threads()
    assert second is not first


def test_hanging_call_delays_no_stop_and_adds_no_thread(wire: Wire, made: Callable[..., FleetSync]) -> None:
    wire.answers.clear()
    fleet = made(wire)
    fleet.start()
    wire.wait()
    (thread,) = threads()
    fleet.stop(0.01)
    fleet.start()
    assert threads() == [thread]
    fleet.stop(0.01)
    wire.answers.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_farewell_that_fails_ends_all_the_same(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    beats(fleet, wire)
    wire.error = OSError("gone")
    fleet.stop(PATIENCE_S)
    assert not threads()
    calls = len(wire.calls)
    fleet.start()
    until(lambda: fleet.view().failures == 2, PATIENCE_S, "a failure")
    fleet.stop(PATIENCE_S)
    assert len(wire.calls) == calls + 1, "a store that is away is not bidden farewell"


def test_no_thread_left_is_no_error_of_the_request(
    wire: Wire, made: Callable[..., FleetSync], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fleet = made(wire)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        fleet.start()
    assert (threads(), fleet.view().failures) == ([], 1)
    fleet.stop()
    beats(fleet, wire)


def test_without_its_thread_a_process_runs_alone(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    asyncio.run(fleet.ensure(MID))
    assert not fleet.leases.is_up
    assert not wire.calls


def test_nothing_is_called_under_the_lock(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    wire.answers.clear()
    fleet.start()
    wire.wait()
    entered = threading.Event()

    def enters() -> None:
        with fleet.lock:
            entered.set()

    threading.Thread(target=enters, daemon=True).start()
    assert entered.wait(PATIENCE_S)


def test_step_that_stops_the_fleet_ends_the_thread(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    plain = wire.answer

    def stops(arguments: tuple[Any, ...]) -> Any:
        fleet.stop()
        return plain(arguments)

    wire.answer = stops
    fleet.start()
    until(lambda: not threads(), PATIENCE_S, "the end of the thread")


def test_thread_ends_with_its_owner(wire: Wire, made: Callable[..., FleetSync]) -> None:
    class Owner:
        """Owns the fleet."""

    fleet, owner = made(wire), Owner()
    fleet.stop_with(owner)
    beats(fleet, wire)
    del owner
    gc.collect()
    until(lambda: not threads(), PATIENCE_S, "the end of the thread")
    assert not wire.store.members


def test_waiter_closed_under_the_lock_leaves_after_it(wire: Wire, made: Callable[..., FleetSync]) -> None:
    fleet = made(wire)
    waits = fleet.ensure(MID)

    async def begins() -> None:
        waits.send(None)

    asyncio.run(begins())
    with fleet.lock:
        waits.close()  # as the garbage collector does
        assert fleet.leases.waiters
    assert not fleet.leases.waiters


def test_two_processes_are_two_members(wire: Wire, made: Callable[..., FleetSync]) -> None:
    for fleet in (made(wire), made(wire)):
        fleet.start()
    wire.wait(2)
    until(lambda: len(names(wire.calls)) == 2, PATIENCE_S, "two names")
