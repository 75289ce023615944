"""The middleware over a shared store: responses, and unsupported event loops."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from autoglm_throttle.admission import factory
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.protocol import StoreErrorKind
from autoglm_throttle.throttle import Throttle
from tests.asgi.run_app import request, send_scope, websocket_scope
from tests.store.scripted_store import ScriptedStore


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def worker(server: FakeServer, limit: str = "3/minute") -> ThrottleMiddleware:
    """One of several processes on one store."""
    settings = Settings(user_limit=limit, gpu="none", retry_jitter=0)
    return ThrottleMiddleware(hello, throttle=Throttle(settings, redis=lambda: FakeAsyncRedis(server=server)))


async def test_workers_share_limits_and_report_remaining() -> None:
    server = FakeServer()
    workers = [worker(server) for _ in range(2)]
    answers = [await request(workers[n % 2]) for n in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    told = [answer.header("ratelimit") for answer in answers]
    assert told == [f'"user-60s";r={left};t=60' for left in (2, 1, 0, 0)]
    assert answers[-1].header("retry-after") == "60"
    assert b"quota-exceeded" in answers[-1].body


async def test_a_websocket_is_charged_in_the_store_as_well() -> None:
    server = FakeServer()
    app = worker(server, "1/minute")
    assert (
        await send_scope(app, websocket_scope(denial=True), [{"type": "websocket.connect"}])
    ).status == 101
    assert (await send_scope(worker(server, "1/minute"), websocket_scope(denial=True))).status == 429
    assert app.throttle.snapshot().active == dict.fromkeys(app.throttle.snapshot().active, 0)


async def test_store_outage_rejection_is_503_with_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ScriptedStore(otherwise=StoreErrorKind.UNREACHABLE)
    monkeypatch.setattr(factory, "shared_store", lambda *_: store)
    settings = Settings(user_limit="3/minute", gpu="none", redis_url="redis://x", redis_on_error="deny")
    answer = await request(ThrottleMiddleware(hello, throttle=Throttle(settings)))
    assert answer.status == 503
    assert b"temporary-reduced-capacity" in answer.body
    assert int(answer.header("retry-after") or 0) >= 1


async def test_the_health_check_never_asks_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore(otherwise=StoreErrorKind.TIMEOUT)
    monkeypatch.setattr(factory, "shared_store", lambda *_: store)
    settings = Settings(user_limit="3/minute", gpu="none", redis_url="redis://x", redis_on_error="deny")
    app = ThrottleMiddleware(hello, throttle=Throttle(settings))
    assert (await request(app, "/health")).status == 200
    assert not store.charged


def test_start_fails_with_reason_on_unsupported_loop() -> None:
    app = worker(FakeServer())
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def start() -> None:
        await app({"type": "lifespan"}, receive, send)

    anyio.run(start, backend="trio")
    (message,) = said
    assert message["type"] == "lifespan.startup.failed"
    assert "REDIS_URL requires asyncio" in message["message"]


def test_there_a_request_is_decided_without_the_store(caplog: pytest.LogCaptureFixture) -> None:
    app = worker(FakeServer(), "1/minute")

    async def twice() -> list[int]:
        return [(await request(app)).status for _ in range(2)]

    assert anyio.run(twice, backend="trio") == [200, 429]
    store = app.throttle.snapshot().store
    assert store is not None
    assert store.fallbacks[StoreErrorKind.LOOP] == 2
