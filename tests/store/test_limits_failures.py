"""A storage of `limits` that fails, is silent, or goes away and comes back."""

from __future__ import annotations

import asyncio
import threading

import pytest
import trio

from autoglm_throttle.store.limits_storage import MovingLog
from autoglm_throttle.store.limits_window import LimitsWindow
from autoglm_throttle.store.user_limit_store import StoreErrorKind, StoreStats
from autoglm_throttle.types import UserLimit
from tests.store.storages import (
    PATIENT_S,
    Hands,
    ask,
    charge,
    listened,
    until,
)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (ConnectionRefusedError("no"), StoreErrorKind.UNREACHABLE),
        (ConnectionResetError(), StoreErrorKind.LOST),
        (KeyError("?"), StoreErrorKind.CONFUSED),
    ],
)
async def test_an_error_is_an_answer(
    window: LimitsWindow, hands: Hands, error: Exception, trouble: StoreErrorKind
) -> None:
    heard = listened(window)
    hands.error = error
    assert await window.charge([charge()]) is trouble
    assert window.last_error.startswith(type(error).__name__)
    hands.error = None
    await ask(window)
    assert heard == [trouble, None]
    assert window.last_error == "", "of what is over nothing is told"


async def test_a_window_that_memcached_would_not_keep_is_no_answer() -> None:
    window = LimitsWindow("async+memcached://127.0.0.1:1")
    assert (
        await window.charge([charge(limits=(UserLimit("user-30d", 3, 30 * 86_400),))])
        is StoreErrorKind.CONFUSED
    )
    assert "up to 15 days" in window.last_error


async def test_the_deadline_ends_a_decision(hands: Hands) -> None:
    window = LimitsWindow("async+own://", 0.01)
    heard, hands.gate = listened(window), asyncio.Event()
    assert await window.charge([charge()]) is StoreErrorKind.TIMEOUT
    assert heard == [StoreErrorKind.TIMEOUT]
    assert window.last_error == "no answer within 0.01 s"
    await until(lambda: not window.stats().waiting)
    assert hands.cancelled == 1


async def test_concurrent_failures_count_once(hands: Hands) -> None:
    window = LimitsWindow("async+own://", 0.01)
    heard, hands.gate = listened(window), asyncio.Event()
    answers = await asyncio.gather(*(window.charge([charge()]) for _ in range(64)))
    assert answers == [StoreErrorKind.TIMEOUT] * 64
    assert heard == [StoreErrorKind.TIMEOUT]
    assert await window.charge([charge()]) is StoreErrorKind.TIMEOUT
    assert heard == [StoreErrorKind.TIMEOUT] * 2


async def test_a_loop_that_stood_still_is_no_silent_storage(hands: Hands) -> None:
    window, hands.gate = LimitsWindow("async+own://", 0.001), asyncio.Event()
    asking = asyncio.ensure_future(window.charge([charge()]))
    await until(lambda: len(hands.asked) == 1)
    loop, gate = asyncio.get_running_loop(), hands.gate
    ends_s = loop.time() + 0.03
    while loop.time() < ends_s:
        pass
    loop.call_soon(loop.call_soon, loop.call_soon, gate.set)  # read some passes after the deadline has fired
    assert not isinstance(await asking, StoreErrorKind)


async def test_a_cancelled_caller_leaves_its_question_to_end(window: LimitsWindow, hands: Hands) -> None:
    heard, hands.gate = listened(window), asyncio.Event()
    asking = asyncio.ensure_future(window.charge([charge()]))
    await until(lambda: len(hands.asked) == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert window.stats().waiting == 1
    hands.gate.set()
    await until(lambda: not window.stats().waiting)
    assert (window.stats().late, hands.cancelled, heard) == (1, 0, [])
    assert list(hands.units.values()) == [1]


async def test_but_not_beyond_its_deadline(hands: Hands) -> None:
    window, hands.gate = LimitsWindow("async+own://", 0.01), asyncio.Event()
    asking = asyncio.ensure_future(window.charge([charge()]))
    await until(lambda: len(hands.asked) == 1)
    asking.cancel()
    await until(lambda: not window.stats().waiting)
    assert (window.stats().late, hands.cancelled) == (0, 1)


async def test_nothing_is_given_back(window: LimitsWindow, hands: Hands) -> None:
    answer = await window.charge([charge()])
    assert not isinstance(answer, StoreErrorKind)
    window.give_back([charge()], answer)
    assert list(hands.units.values()) == [1]


async def test_a_probe_takes_a_connection_of_its_own(window: LimitsWindow, hands: Hands) -> None:
    await ask(window)
    old = hands.made[-1]
    hands.error = ConnectionRefusedError()
    assert await window.probe() is StoreErrorKind.UNREACHABLE
    assert hands.made[-1].name == hands.asked[-1][0] != old.name
    hands.error = None
    assert await window.probe() is None
    new = hands.made[-1]
    await asyncio.sleep(0)
    (here,) = window.loops.all()
    await until(lambda: not here.closings)
    assert [made.storage.closed for made in hands.made[-3:]] == [1, 1, 0]
    await ask(window)
    assert hands.asked[-1][0] == new.name
    assert len(hands.made) == 4, "three, and the one that shows what it can"


async def test_a_probe_has_a_deadline(
    window: LimitsWindow, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoglm_throttle.store.limits_window.CONNECT_S", 0.01)
    hands.gate = asyncio.Event()
    assert await window.probe() is StoreErrorKind.TIMEOUT
    assert window.last_error == "TimeoutError"


async def test_dropped_client_is_closed_and_recreated(window: LimitsWindow, hands: Hands) -> None:
    window.disconnect()  # nothing is open yet
    await ask(window)
    dropped = hands.made[-1]
    thread = threading.Thread(target=window.disconnect)  # the throttle's lock may be held in any thread
    thread.start()
    thread.join()
    for _ in range(2):
        await asyncio.sleep(0)
    assert dropped.storage.closed == 1
    await ask(window)
    assert hands.asked[-1][0] == hands.made[-1].name != dropped.name
    assert window.stats() == StoreStats(calls=4, sent=2)


async def test_memory_storage_survives_drop_and_probe() -> None:
    window = LimitsWindow("async+memory://", PATIENT_S)
    await ask(window)
    window.disconnect()
    await asyncio.sleep(0)
    assert await window.probe() is None
    assert (await ask(window))[0][1] == 1


async def test_a_storage_in_memory_survives_a_probe_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    window = LimitsWindow("async+memory://", PATIENT_S)
    await ask(window)
    with monkeypatch.context() as patch:
        patch.setattr(MovingLog, "hit", None)
        assert await window.probe() is StoreErrorKind.CONFUSED
    assert (await ask(window))[0][1] == 1
    assert window.stats() == StoreStats(calls=4, sent=2)


def test_where_no_asyncio_runs_there_is_no_answer(window: LimitsWindow) -> None:
    heard = listened(window)
    window.errors.record(StoreErrorKind.LOST, "yesterday")
    assert trio.run(window.charge, [charge()]) is StoreErrorKind.LOOP
    assert window.last_error == ""
    assert trio.run(window.probe) is StoreErrorKind.LOOP
    assert heard == [StoreErrorKind.LOOP]
