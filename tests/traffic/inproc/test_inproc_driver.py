"""A load on an application in process: every request ends in one way, at its time, as over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from math import isnan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from autoglm_throttle.testing import ManualClock
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.inproc import run_inprocess
from autoglm_throttle.traffic.inproc.driver import LEFTOVER_S, PATIENCE_S
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest
from tests.traffic.inproc.inproc_loads import Behave, a_load, answer, http

ANSWERS: list[tuple[int, bytes, dict[str, str], RequestResult, str, float | None]] = [
    (200, b"fine", {}, RequestResult.OK, "", None),
    (302, b"", {}, RequestResult.OK, "", None),
    (200, b"old", {"X_Degraded": "stale"}, RequestResult.DEGRADED, "", None),
    (429, b'{"reason": "user"}', {"retry_after": "7"}, RequestResult.LIMITED, "user", 7.0),
    (429, b"no JSON", {}, RequestResult.LIMITED, "", None),
    (503, b'{"reason": "gpu:utilization"}', {"Retry_After": "2"}, RequestResult.SHED, "gpu:utilization", 2.0),
    (503, b"[" * 100_000, {"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, RequestResult.SHED, "", None),
    (503, b'{"reason": 5}', {"retry_after": "1"}, RequestResult.SHED, "", 1.0),
    (503, b"", {}, RequestResult.SERVER_ERROR, "", None),
    (404, b"", {}, RequestResult.CLIENT_ERROR, "", None),
    (500, b"", {}, RequestResult.SERVER_ERROR, "", None),
]


@pytest.mark.parametrize(("status", "body", "headers", "ending", "reason", "promised_s"), ANSWERS)
def test_responses_are_classified_as_over_http(
    status: int,
    body: bytes,
    headers: dict[str, str],
    ending: RequestResult,
    reason: str,
    promised_s: float | None,
) -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, status, body, **headers)

    sheet = run_inprocess(http(behave), a_load([0.0])).request_log
    assert (sheet.results[0], sheet.statuses[0]) == (ending, status)
    assert sheet.reason_texts[sheet.reasons[0]] == reason
    assert isnan(sheet.promised_s[0]) if promised_s is None else sheet.promised_s[0] == promised_s


def test_times_are_those_of_the_clock() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(0.5)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.sleep(1.0)
        await send({"type": "http.response.body", "body": b"b"})
        await asyncio.sleep(5.0)

    clock = ManualClock()
    result = run_inprocess(http(behave), a_load([0.0, 0.25, 4.0]), clock=clock)
    sheet = result.request_log
    assert list(sheet.response_s) == pytest.approx([2.0] * 3)
    assert list(sheet.service_s) == pytest.approx([2.0] * 3)
    assert list(sheet.first_byte_s) == pytest.approx([1.0] * 3)
    assert list(sheet.lag_s) == pytest.approx([0.0] * 3, abs=1e-9)
    assert result.run_cost.elapsed_s == pytest.approx(6.0)
    assert (result.run_cost.loop, result.run_cost.cpu_share) == ("virtual", None)
    assert clock() == pytest.approx(1000.0 + 4.0 + 2.0 + 5.0)


def test_an_answer_without_a_body_has_its_first_byte_at_its_end() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await answer(send, 204)

    assert run_inprocess(http(behave), a_load([0.0])).request_log.first_byte_s[0] == pytest.approx(0.5)


async def _raises(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise ValueError("planted")


async def _forgets(_scope: Scope, _receive: Receive, _send: Send) -> None:
    pass


async def _stops_midway(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})


async def _raises_midway(scope: Scope, receive: Receive, send: Send) -> None:
    await _stops_midway(scope, receive, send)
    raise ValueError("planted")


async def _raises_afterwards(_scope: Scope, _receive: Receive, send: Send) -> None:
    await answer(send, 200)
    raise ValueError("planted")


async def _speaks_out_of_turn(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.body", "body": b"a"})


async def _starts_twice(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.start", "status": 200})


async def _is_cancelled(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("behave", "ending", "status", "told"),
    [
        (_raises, RequestResult.SERVER_ERROR, 500, "planted"),
        (_forgets, RequestResult.SERVER_ERROR, 500, ""),
        (_stops_midway, RequestResult.CONNECTION, 0, ""),
        (_raises_midway, RequestResult.CONNECTION, 0, "planted"),
        (_raises_afterwards, RequestResult.OK, 200, "planted"),
        (_speaks_out_of_turn, RequestResult.SERVER_ERROR, 500, "http.response.body cannot come first"),
        (_starts_twice, RequestResult.CONNECTION, 0, "http.response.start cannot come after the start"),
        (_is_cancelled, RequestResult.SERVER_ERROR, 500, ""),
    ],
)
def test_invalid_app_messages_fail_as_on_a_server(
    behave: Behave, ending: RequestResult, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    sheet = run_inprocess(http(behave), a_load([0.0, 1.0])).request_log
    assert set(sheet.results) == {ending}
    assert set(sheet.statuses) == {status}
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == bool(told)
    assert told in caplog.text


def test_timeout_is_exact_and_disconnects() -> None:
    heard: list[tuple[str, float]] = []
    clock = ManualClock()

    async def behave(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/quick":
            await answer(send, 200)
            return
        await receive()
        heard.append(((await receive())["type"], clock()))
        await answer(send, 200)

    requests = (PlannedRequest(target="/slow"), PlannedRequest(target="/quick"))
    load = a_load([0.0, 0.1, 0.25, 40.0], *requests, kinds=[0, 1, 0, 0])
    sheet = run_inprocess(http(behave), load, clock=clock, timeout_s=3.0).request_log
    assert list(sheet.results) == [
        RequestResult.TIMEOUT,
        RequestResult.OK,
        RequestResult.TIMEOUT,
        RequestResult.TIMEOUT,
    ]
    assert [sheet.response_s[index] for index in (0, 2, 3)] == pytest.approx([3.0] * 3)
    assert {kind for kind, _ in heard} == {"http.disconnect"}
    assert [at_s for _, at_s in heard] == pytest.approx([1003.0, 1003.25, 1043.0])
    assert set(sheet.statuses) == {0, 200}


def test_complete_response_ends_receive() -> None:
    heard = []

    async def behave(_scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(await receive())
        listening = asyncio.ensure_future(receive())
        await asyncio.sleep(1.0)
        assert not listening.done()
        await answer(send, 200)
        heard.append(await listening)
        heard.append(await receive())

    run_inprocess(http(behave), a_load([0.0]))
    assert heard[0] == {"type": "http.request", "body": b"{}", "more_body": False}
    assert [message["type"] for message in heard[1:]] == ["http.disconnect"] * 2


def test_receive_can_be_cancelled_and_called_again() -> None:
    heard = []

    async def behave(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receive(), 1.0)
        await answer(send, 200)
        heard.append((await receive())["type"])

    sheet = run_inprocess(http(behave), a_load([0.0])).request_log
    assert heard == ["http.disconnect"]
    assert sheet.response_s[0] == pytest.approx(2.0)


async def _never(_scope: Scope, receive: Receive, _send: Send) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def test_client_disconnects_depend_only_on_the_seed() -> None:
    load = a_load([0.01 * number for number in range(400)])

    def left(seed: int, abort: float) -> list[float]:
        sheet = run_inprocess(http(_never), load, abort=abort, seed=seed).request_log
        return [
            s
            for s, ending in zip(sheet.response_s, sheet.results, strict=True)
            if ending == RequestResult.CONNECTION
        ]

    assert left(1, 0.5) == left(1, 0.5) != left(2, 0.5)
    assert 150 < len(left(1, 0.5)) < 250
    assert len(left(1, 1.0)) == 400
    assert not left(1, 0.0)
    assert all(PATIENCE_S[0] * 0.99 <= s <= PATIENCE_S[1] * 1.01 for s in left(1, 1.0))


def test_client_with_a_response_does_not_disconnect() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await answer(send, 200)

    sheet = run_inprocess(http(behave), a_load([0.0] * 50), abort=1.0).request_log
    assert set(sheet.results) == {RequestResult.OK}


def test_send_after_disconnect_is_no_error() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(PATIENCE_S[1] + 1.0)
        await send({"type": "http.response.body", "body": b"late"})

    sheet = run_inprocess(http(behave), a_load([0.0]), abort=1.0).request_log
    assert (sheet.results[0], sheet.statuses[0]) == (RequestResult.CONNECTION, 0)
    assert isnan(sheet.first_byte_s[0])


@pytest.mark.parametrize(("work_s", "finished"), [(LEFTOVER_S - 1.0, True), (LEFTOVER_S + 1.0, False)])
def test_work_of_a_client_that_left_goes_on_for_a_while(work_s: float, *, finished: bool) -> None:
    ends: list[str] = []

    async def behave(_scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            await asyncio.sleep(1.0 + work_s)
            ends.append("finished")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    run_inprocess(http(behave), a_load([0.0]), timeout_s=1.0)
    assert ends == ["finished" if finished else "cancelled"]


@pytest.mark.parametrize(
    "manner", [{"abort": -0.1}, {"abort": 1.1}, {"abort": float("nan")}, {"timeout_s": 0.0}]
)
def test_impossible_client_behavior_is_rejected(manner: Any) -> None:
    with pytest.raises(TrafficError, match=next(iter(manner))):
        run_inprocess(http(_never), a_load([0.0]), **manner)


def test_observer_is_called_once_per_second() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await answer(send, 200)

    def watch(t_s: float) -> dict[str, float] | None:
        return {"factor_ratio": t_s / 10.0} if t_s != 2.0 else None

    result = run_inprocess(http(behave), a_load([0.0, 4.0]), watch=watch)
    assert result.watched == tuple({"t_s": t_s, "factor_ratio": t_s / 10.0} for t_s in (0.0, 1.0, 3.0, 4.0))


def test_samples_do_not_drift() -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await answer(send, 200)

    result = run_inprocess(http(behave), a_load([0.0, 999.9]), watch=lambda t_s: {"inflight": t_s})
    assert [sample["t_s"] for sample in result.watched] == [float(second) for second in range(1001)]


def test_exception_of_the_observer_ends_the_run() -> None:
    def watch(t_s: float) -> None:
        if t_s:
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        run_inprocess(http(_never), a_load([0.0, 4.0]), watch=watch)


def test_an_empty_plan_is_a_run_too() -> None:
    result = run_inprocess(http(_never), a_load([]))
    assert result.balanced
    assert result.run_cost.elapsed_s == 0.0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 2.0), st.integers(0, 5)),
        min_size=1,
        max_size=40,
    ),
    st.floats(0.0, 1.0),
    st.integers(0, 5),
)
def test_outcomes_are_unique_and_repeatable(asked: list[tuple[float, int]], abort: float, seed: int) -> None:
    async def behave(scope: Scope, receive: Receive, send: Send) -> None:
        how = int(scope["path"][1:])
        await asyncio.sleep(0.3 * how)
        if how == 5:
            await _never(scope, receive, send)
        elif how == 4:
            raise asyncio.CancelledError
        elif how == 3:
            await _stops_midway(scope, receive, send)
        else:
            await answer(send, (200, 429, 503)[how], b'{"reason":"user"}', retry_after="1")

    offsets = sorted(offset_s for offset_s, _ in asked)
    load = a_load(
        offsets, *(PlannedRequest(target=f"/{how}") for how in range(6)), kinds=[how for _, how in asked]
    )
    once, again = (run_inprocess(http(behave), load, abort=abort, seed=seed) for _ in range(2))
    assert once.balanced
    assert max(once.request_log.lag_s) <= 1e-6
    assert once.request_log.results == again.request_log.results
    for name in ("response_s", "service_s", "first_byte_s", "promised_s", "statuses", "reasons"):
        assert getattr(once.request_log, name).tobytes() == getattr(again.request_log, name).tobytes()
    assert sum(Counter(once.request_log.results).values()) == len(asked)
