"""Which ends of a request are failures for the breaker of an app, which are good, and which say nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.settings import BreakerSettings
from autoglm_throttle.types import BreakerState, Outcome
from tests.asgi.guarded_app import (
    BOOM,
    FAILURES,
    Service,
    breaking_off,
    leaving,
    limits,
    plain,
    with_fallback,
)
from tests.asgi.run_app import http_scope, never, send_scope, websocket_scope


@pytest.mark.parametrize("status", [500, 502, 503, 504, 507, 520, 529, 530])  # FIELD 26
async def test_statuses_of_a_failing_server_open_it(status: int) -> None:
    service = Service()
    await service.fails(status)
    assert service.state() is BreakerState.OPEN
    assert service.breaker.last_failure == f"status {status}"


@pytest.mark.parametrize("status", [200, 204, 301, 400, 404, 422, 429, 501, 505])
async def test_other_statuses_do_not(status: int) -> None:
    service = Service()
    await service.fails(status)
    assert service.state() is BreakerState.CLOSED
    assert service.breaker.streak == 0


async def test_429_is_no_evidence_and_ends_no_row_of_failures() -> None:
    service = Service()
    await service.fails(500, FAILURES - 1)
    await service.ask(429)
    assert service.breaker.streak == FAILURES - 1
    await service.ask(404)
    assert service.breaker.streak == 0


@pytest.mark.parametrize(
    "app", [BOOM, breaking_off(BOOM), breaking_off(None)], ids=["before", "in mid-body", "silently"]
)
async def test_incomplete_response_opens_breaker(app: Any) -> None:
    service = Service(answers=app)
    for number in range(1, FAILURES + 1):
        with suppress(RuntimeError):
            await service.ask()
        assert service.breaker.streak == number or service.state() is BreakerState.OPEN
    assert service.state() is BreakerState.OPEN


@pytest.mark.parametrize("left", [ClientDisconnect(), asyncio.CancelledError()])
async def test_client_disconnect_is_no_failure(left: BaseException) -> None:
    service = Service()
    await service.fails(500, FAILURES - 1)
    with pytest.raises(type(left)):
        await service.ask(left)
    assert (service.state(), service.breaker.streak) == (BreakerState.CLOSED, FAILURES - 1)


@pytest.mark.parametrize("ends", [None, BOOM], ids=["returns", "raises"])
@pytest.mark.parametrize("after", [0, 1, 2])
async def test_app_after_disconnect_is_no_evidence(after: int, ends: Exception | None) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        for message in [
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.body", "body": b"part", "more_body": True},
        ][:after]:
            await send(message)
        assert (await receive())["type"] == "http.disconnect"
        if ends is not None:
            raise ends

    service = Service(answers=app)
    for _ in range(FAILURES):
        with suppress(RuntimeError):
            await leaving(service.app, after=after)
    assert (service.state(), service.breaker.streak) == (BreakerState.CLOSED, 0)


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("closed")])
@pytest.mark.parametrize("at", ["http.response.start", "http.response.body"])
async def test_an_error_of_the_server_is_no_evidence(at: str, error: Exception) -> None:
    service = Service(answers=breaking_off(BOOM))

    async def send(message: Any) -> None:
        if message["type"] == at:
            raise error

    for _ in range(FAILURES):
        with pytest.raises(type(error)):
            await service.app(http_scope(), never, send)
    assert (service.state(), service.breaker.streak) == (BreakerState.CLOSED, 0)


async def test_an_error_page_for_a_client_that_has_gone_is_no_evidence() -> None:
    """As Starlette makes one when a client leaves in the midst of its upload."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await plain(send, 500, b"")
        raise ClientDisconnect

    service = Service(answers=app)
    with pytest.raises(ClientDisconnect):
        await leaving(service.app)
    assert service.breaker.last_failure == ""


@pytest.mark.parametrize("error", [None, WebSocketDisconnect()])
async def test_websockets_that_end_are_good_or_no_evidence(error: Exception | None) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"
        if error is not None:
            raise error

    service = Service(answers=500)
    await service.fails(500, FAILURES - 1)
    service.answers = app
    with suppress(WebSocketDisconnect):
        await send_scope(service.app, websocket_scope(), [{"type": "websocket.connect"}])
    assert service.state() is BreakerState.CLOSED
    assert service.breaker.streak == (0 if error is None else FAILURES - 1)


async def test_a_denied_websocket_is_judged_by_its_status() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.http.response.start", "status": 500, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    service = Service(answers=app)
    for _ in range(FAILURES):
        await send_scope(service.app, websocket_scope(denial=True), [{"type": "websocket.connect"}])
    assert service.state() is BreakerState.OPEN


async def test_a_slow_first_byte_is_slow() -> None:
    service = with_fallback(breaker=BreakerSettings(slow_call_s=2.0))

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        service.throttle.clock.advance(2.1)
        await plain(send, 200, b"late")

    await service.fails(slow)
    assert service.state() is BreakerState.OPEN


async def test_an_empty_part_is_no_first_byte() -> None:
    service = with_fallback(breaker=BreakerSettings(slow_call_s=2.0))

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        service.throttle.clock.advance(3.0)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body"})

    await service.fails(stream)
    assert service.state() is BreakerState.OPEN


async def test_a_long_stream_that_began_in_time_is_not_slow() -> None:
    service = with_fallback(breaker=BreakerSettings(slow_call_s=2.0))

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        service.throttle.clock.advance(1.0)
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            service.throttle.clock.advance(5.0)
        await send({"type": "http.response.body"})

    await service.fails(stream)
    assert service.breaker.streak == 0


@pytest.mark.parametrize(("limit_s", "state"), [(1.5, BreakerState.OPEN), (2.5, BreakerState.CLOSED)])
async def test_the_first_item_has_a_limit_of_its_own(limit_s: float, state: BreakerState) -> None:
    service = with_fallback(breaker=BreakerSettings(slow_call_s=0.1, first_item_s=limit_s))

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        service.throttle.clock.advance(2.0)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body"})

    await service.fails(stream)
    assert service.state() is state


async def test_a_file_that_the_server_sends_is_an_answer() -> None:
    async def file(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": "/file"})

    async def copied(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.zerocopysend", "file": 3, "more_body": True})
        await send({"type": "http.response.zerocopysend", "file": 3})

    service = Service()
    for app in (file, copied):
        await service.fails(500, 1)
        await service.ask(app)
        assert service.breaker.streak == 0


async def test_the_user_may_classify_a_status() -> None:
    throttle = limits()
    verdicts = {501: Outcome.FAILURE, 500: Outcome.NEUTRAL, 503: Outcome.SUCCESS}
    throttle.feature("app", classify=lambda seen: verdicts.get(seen) if isinstance(seen, int) else None)
    service = Service(throttle)
    await service.fails(501, FAILURES - 1)
    await service.ask(500)
    assert service.breaker.streak == FAILURES - 1
    await service.ask(503)
    assert service.breaker.streak == 0
    await service.fails(501)
    assert service.state() is BreakerState.OPEN


async def test_ignored_and_expected_exceptions() -> None:
    throttle = limits()
    throttle.feature("app", ignore=[KeyError], expected=[LookupError])
    service = Service(throttle)
    await service.fails(500, FAILURES - 1)
    await service.fails(KeyError("key"), 1)
    assert service.breaker.streak == FAILURES - 1
    await service.fails(IndexError("index"), 1)
    assert service.breaker.streak == 0
