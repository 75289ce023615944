"""A run reports applications that never end and invalid responses."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable

import anyio
import pytest
from starlette.types import Receive, Scope, Send

from autoglm_throttle.traffic.inproc import VirtualLoop, run_inprocess
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest
from tests.traffic.inproc.inproc_loads import a_load, answer, http


async def tick() -> None:
    """A task that wakes for ever, so that its loop never stands still."""
    while True:  # noqa: ASYNC110 - waking for nothing is the point
        await asyncio.sleep(10.0)


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("asleep", [anyio.sleep_forever, lambda: asyncio.Event().wait()])
@pytest.mark.parametrize("what", ["startup", "shutdown"])
def test_endless_lifespan_is_reported(
    what: str, asleep: Callable[[], Awaitable[object]], *, busy: bool
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await answer(send, 200)
            return
        ticking = asyncio.create_task(tick()) if busy else None
        for kind in ("startup", "shutdown"):
            await receive()
            if kind == what:
                await asleep()
            await send({"type": f"lifespan.{kind}.complete"})
        assert ticking is None

    words = f"the {what} of the application is not over after 600 s" if busy else "nothing is ready"
    with pytest.raises(RuntimeError, match=rf"{words}.*these tasks wait forever: .*lifespan"):
        run_inprocess(app, a_load([0.0]))


def test_handler_that_ignores_its_cancel_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn(_scope: Scope, _receive: Receive, _send: Send) -> None:
        while True:
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue

    caplog.set_level(logging.CRITICAL, "asyncio")
    with pytest.raises(RuntimeError, match=r"cancellation of .* is not over after 30 s .*POST /v1/predict"):
        run_inprocess(http(stubborn), a_load([0.0]))


def test_a_handler_may_clean_up_after_its_cancel() -> None:
    cleaned: list[bool] = []

    async def slow(_scope: Scope, _receive: Receive, _send: Send) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(20.0)
            cleaned.append(True)

    assert run_inprocess(http(slow), a_load([0.0])).request_log.results[0] == RequestResult.TIMEOUT
    assert cleaned == [True]


def test_a_timer_at_infinity_is_none() -> None:
    loop = VirtualLoop()
    try:
        timer = loop.call_later(float("inf"), print)
        timer.cancel()
        with pytest.raises(RuntimeError, match="nothing is ready"):
            loop.run_until_complete(anyio.sleep_forever())
    finally:
        loop.close()


def test_a_limit_can_be_taken_away() -> None:
    loop = VirtualLoop()
    try:
        loop.limit(5.0, "a nap")
        loop.run_until_complete(asyncio.sleep(5.0))
        with pytest.raises(RuntimeError, match=r"a nap is not over after 5 s of virtual time"):
            loop.run_until_complete(asyncio.sleep(1.0))
        loop.limit(float("inf"), "")
        loop.run_until_complete(asyncio.sleep(1e6))
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("method", "status", "parts", "ending"),
    [
        ("POST", 200, [b"12345"], RequestResult.OK),
        ("POST", 200, [b"12", b"345"], RequestResult.OK),
        ("POST", 200, [b"12"], RequestResult.CONNECTION),
        ("POST", 200, [b""], RequestResult.CONNECTION),
        ("POST", 200, [b"123456"], RequestResult.CONNECTION),
        ("POST", 200, [b"1234", b"56", b""], RequestResult.CONNECTION),
        ("HEAD", 200, [b""], RequestResult.OK),
        ("POST", 304, [b""], RequestResult.OK),
    ],
)
def test_response_body_matches_its_content_length(
    method: str, status: int, parts: list[bytes], ending: RequestResult, caplog: pytest.LogCaptureFixture
) -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        fields = [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        for number, part in enumerate(parts, start=1):
            more = number < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    sheet = run_inprocess(http(behave), a_load([0.0], PlannedRequest(method=method))).request_log
    assert sheet.results[0] == ending
    assert ("than its content-length" in caplog.text) == (ending is RequestResult.CONNECTION)


@pytest.mark.parametrize("status", [70000, 99, 0, None])
def test_invalid_status_is_reported(status: int | None, caplog: pytest.LogCaptureFixture) -> None:
    async def behave(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status})

    sheet = run_inprocess(http(behave), a_load([0.0])).request_log
    assert (sheet.results[0], sheet.statuses[0]) == (RequestResult.SERVER_ERROR, 500)
    assert f"{status!r} is no status of an answer" in caplog.text


def test_it_is_not_called_from_a_running_loop() -> None:
    async def inside() -> None:
        with pytest.raises(RuntimeError, match="call it from sync code"):
            run_inprocess(http(lambda *_: asyncio.sleep(0)), a_load([0.0]))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(inside())
