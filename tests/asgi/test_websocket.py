"""A websocket is charged once, at the handshake; a rejection is a denial or a close before the accept."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Decision, Reason, Rejected
from tests.asgi.queued_clients import Client, Service, left_in_line, settled, taken, used, with_places
from tests.asgi.run_app import Message, connect, send_scope, silent, websocket_scope


def echo() -> FastAPI:
    app = FastAPI()

    @app.websocket("/ws")
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    return app


def outcomes(throttle: ManualThrottle) -> dict[str, int]:
    return {outcome.value: n for (_, outcome), n in throttle.snapshot().outcomes.items() if n}


async def test_admitted_websocket_passes_untouched_but_for_its_headers() -> None:
    throttle = throttle_for_tests(user_limit="2/minute")
    answer = await connect(ThrottleMiddleware(echo(), throttle=throttle), "/ws")
    bare = await connect(echo(), "/ws")
    assert [m["type"] for m in answer.messages] == [m["type"] for m in bare.messages]
    assert answer.messages[1:] == bare.messages[1:]
    assert answer.header("ratelimit") == '"user-60s";r=1;t=60'
    assert outcomes(throttle) == {"success": 1}


async def test_messages_of_an_open_websocket_are_not_charged() -> None:
    throttle = throttle_for_tests(user_limit="2/minute")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        for _ in range(10):
            await send({"type": "websocket.send", "text": "hello"})

    wrapped = ThrottleMiddleware(app, throttle=throttle)
    assert len((await connect(wrapped)).messages) == 11
    assert (await connect(wrapped)).status == 101


async def test_permit_is_held_for_the_life_of_the_websocket() -> None:
    throttle = throttle_for_tests(user_limit="2/minute")
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for kind in ("accept", "send", "close"):
            await send({"type": f"websocket.{kind}"})
            seen.append(sum(throttle.snapshot().active.values()))

    await connect(ThrottleMiddleware(app, throttle=throttle))
    assert seen == [1, 1, 1]
    assert sum(throttle.snapshot().active.values()) == 0


async def test_rejected_with_denial_response_if_supported() -> None:
    app = ThrottleMiddleware(echo(), throttle=throttle_for_tests(user_limit="1/minute"))
    await connect(app, "/ws")
    answer = await connect(app, "/ws", denial=True)
    assert [m["type"] for m in answer.messages] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert answer.status == 429
    assert answer.header("retry-after") == "60"
    assert json.loads(answer.body)["reason"] == "user:user-60s"


@pytest.mark.parametrize("extensions", [None, {}, {"other": {}}])
async def test_rejected_with_close_before_accept_otherwise(extensions: Any) -> None:
    app = ThrottleMiddleware(echo(), throttle=throttle_for_tests(user_limit="1/minute"))
    await connect(app, "/ws")
    scope = {**websocket_scope("/ws"), "extensions": extensions}
    answer = await send_scope(app, scope, [{"type": "websocket.connect"}])
    assert answer.messages == [{"type": "websocket.close", "code": 1013, "reason": "user:user-60s"}]
    assert len(answer.messages[0]["reason"].encode()) <= 123


async def test_rejected_without_waiting_for_client() -> None:
    app = ThrottleMiddleware(echo(), throttle=throttle_for_tests(user_limit="1/minute"))
    await connect(app, "/ws")
    sent: list[Message] = []

    async def receive() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    with anyio.fail_after(60):
        await app(websocket_scope("/ws"), receive, send)
    assert sent[0]["code"] == 1013


@pytest.mark.parametrize("denial", [True, False])
async def test_charge_rejected_in_handshake_is_answered_after_connect(
    denial: bool,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        raise Rejected(Decision(False, Reason.USER, detail="user:extra", policy="extra", retry_after_s=3.0))

    throttle = throttle_for_tests()
    with anyio.fail_after(60):
        answer = await connect(ThrottleMiddleware(app, throttle=throttle), denial=denial)
    assert (answer.status, answer.close_code) == ((429, None) if denial else (0, 1013))
    assert outcomes(throttle) == {"neutral": 1}


async def test_charge_rejected_after_accept_rewrites_nothing() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        raise Rejected(Decision(False, Reason.USER, detail="user:extra", policy="extra", retry_after_s=3.0))

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    throttle = throttle_for_tests()
    with pytest.raises(Rejected):
        await ThrottleMiddleware(app, throttle=throttle)(websocket_scope(), silent, send)
    assert [message["type"] for message in sent] == ["websocket.accept"]
    assert outcomes(throttle) == {"neutral": 1}


@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError("app"), "failure"), (WebSocketDisconnect(1006), "neutral")]
)
async def test_exception_settles_the_websocket(error: Exception, outcome: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        raise error

    throttle = throttle_for_tests()
    with pytest.raises(type(error)):
        await connect(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {outcome: 1}
    assert sum(throttle.snapshot().active.values()) == 0


async def test_client_that_leaves_is_no_failure() -> None:
    app = FastAPI()

    @app.websocket("/ws")
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.receive_text()

    throttle = throttle_for_tests()
    with pytest.raises(WebSocketDisconnect):
        await connect(ThrottleMiddleware(app, throttle=throttle), "/ws")
    assert outcomes(throttle) == {"neutral": 1}


async def test_app_that_closes_handshake_settles() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close", "code": 4000})

    throttle = throttle_for_tests(user_limit="5/minute")
    answer = await connect(ThrottleMiddleware(app, throttle=throttle))
    assert answer.messages == [{"type": "websocket.close", "code": 4000}]
    assert sum(throttle.snapshot().active.values()) == 0


async def test_rejected_websocket_costs_nothing() -> None:
    throttle = throttle_for_tests(rate_mid_rps=0.001, burst_s=1000)
    app = ThrottleMiddleware(echo(), throttle=throttle)
    assert (await connect(app, "/ws")).status == 101
    for _ in range(5):
        assert (await connect(app, "/ws")).close_code == 1013
    throttle.clock.advance(1000)
    assert (await connect(app, "/ws")).status == 101


# --- where the requests in flight are limited ---

CONNECT: Message = {"type": "websocket.connect"}


def talking(throttle: ManualThrottle) -> Any:
    """An app that accepts, and holds the connection until its client leaves."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    return ThrottleMiddleware(app, throttle=throttle)


def test_rate_mode_websocket_neither_waits_nor_holds_slot(backend: str) -> None:
    async def scenario() -> None:
        throttle = with_places(1)
        app = talking(throttle)
        sockets = [Client(app, websocket_scope(), CONNECT) for _ in range(5)]
        async with anyio.create_task_group() as group:
            for socket in sockets:
                group.start_soon(socket.run)
            await settled()
            assert [socket.answer.status for socket in sockets] == [101] * 5
            assert taken(throttle) == (0, 0, 5)
            request = Service(throttle)
            client = request.client()
            group.start_soon(client.run)
            await settled()
            assert taken(throttle) == (1, 0, 6)
            request.release()
            for socket in sockets:
                socket.leaves()
        assert client.answer.status == 200
        assert taken(throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


def test_slot_mode_websocket_waits_before_accept(backend: str) -> None:
    async def scenario() -> None:
        throttle = with_places(1, websockets="slot")
        app = talking(throttle)
        first, second = (Client(app, websocket_scope(), CONNECT) for _ in range(2))
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await settled()
            group.start_soon(second.run)
            await settled()
            assert (first.answer.status, second.answer.messages) == (101, [])
            assert taken(throttle) == (1, 1, 1)
            first.sends({"type": "websocket.receive", "text": "a message is no end"})
            await settled()
            assert taken(throttle) == (1, 1, 1)
            first.leaves()
            await settled()
            assert second.answer.status == 101
            assert taken(throttle) == (1, 0, 1)
            second.leaves()
        assert taken(throttle) == (0, 0, 0)
        assert (first.error, second.error) == (None, None)

    anyio.run(scenario, backend=backend)


def test_websocket_leaving_queue_is_charged_nothing(backend: str) -> None:
    async def scenario() -> None:
        throttle = with_places(1, websockets="slot")
        app = talking(throttle)
        holder, leaver = (Client(app, websocket_scope(), CONNECT) for _ in range(2))
        async with anyio.create_task_group() as group:
            group.start_soon(holder.run)
            await settled()
            group.start_soon(leaver.run)
            await settled()
            leaver.leaves()
            await settled()
            assert leaver.ended.is_set()
            assert (taken(throttle), used(throttle), left_in_line(throttle)) == ((1, 0, 1), 1, 1)
            holder.leaves()
        assert leaver.answer.messages == []
        assert taken(throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("denial", [True, False])
def test_websocket_queue_timeout_rejects_before_accept(backend: str, denial: bool) -> None:
    async def scenario() -> None:
        throttle = with_places(1, websockets="slot", slo_s=4.0, wait_budget=0.25)
        app = talking(throttle)
        holder, waits = Client(app, websocket_scope(), CONNECT), Client(app, websocket_scope(denial=denial))
        async with anyio.create_task_group() as group:
            group.start_soon(holder.run)
            await settled()
            group.start_soon(waits.run)
            await settled()
            throttle.clock.advance(1.0)
            holder.leaves()
        assert (waits.answer.status, waits.answer.close_code) == ((503, None) if denial else (0, 1013))
        assert taken(throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)
