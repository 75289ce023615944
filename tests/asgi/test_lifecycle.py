"""The GPUs are read from the lifespan or the first request on, under any loop, client and server order."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from autoglm_throttle import GpuSample, Settings, TelemetryState, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, middleware
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.testing import throttle_for_tests
from tests.asgi.run_app import App, lifespan, request, statuses

LIMIT = 3
TIMES = LIMIT + 3
EXACTLY = [200] * LIMIT + [429] * 3
SOON_S = 60.0


class Card:
    """A GPU that says when it is read and when it is let go."""

    name = "card"
    min_interval_s = 0.0

    def __init__(self, *, hangs: bool = False) -> None:
        self.was_read = threading.Event()
        self.was_closed = threading.Event()
        self.go_on = threading.Event()
        self.reader: threading.Thread | None = None
        if not hangs:
            self.go_on.set()

    def read(self) -> Sequence[GpuSample]:
        self.reader = threading.current_thread()
        self.was_closed.clear()
        self.was_read.set()
        self.go_on.wait()
        now = time.monotonic()
        return [GpuSample(device="GPU-1", index=0, taken_at_s=now, source="card", utilization_pct=10.0)]

    def close(self) -> None:
        self.was_read.clear()
        self.was_closed.set()

    def reset_after_fork(self) -> None:
        pass


@pytest.fixture
def card() -> Iterator[Card]:
    card = Card()
    yield card
    card.go_on.set()


@pytest.fixture
def throttle(card: Card) -> Iterator[Throttle]:
    throttle = Throttle(Settings(user_limit=f"{LIMIT}/minute", sample_interval_s=60.0), gpu=card)
    yield throttle
    card.go_on.set()
    throttle.stop()


async def endpoint(request: Request) -> Response:
    return PlainTextResponse("ok")


def service(log: list[str] | None = None) -> Starlette:
    def said(app: Any) -> Any:
        class Span:
            async def __aenter__(self) -> None:
                (log if log is not None else []).append("up")

            async def __aexit__(self, *_: object) -> None:
                (log if log is not None else []).append("down")

        return Span()

    return Starlette(routes=[Route("/x", endpoint)], lifespan=said)


async def test_lifespan_passes_and_spans_the_sampling(card: Card, throttle: Throttle) -> None:
    log: list[str] = []

    async def during() -> None:
        assert card.was_read.wait(SOON_S)
        assert log == ["up"]
        assert card.reader is not None
        assert card.reader is not threading.current_thread()
        assert card.reader.daemon

    said = await lifespan(ThrottleMiddleware(service(log), throttle=throttle), during)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert log == ["up", "down"]
    assert card.was_closed.is_set()
    assert card.reader is not None
    assert not card.reader.is_alive()


async def test_first_request_starts_throttle_without_lifespan(card: Card, throttle: Throttle) -> None:
    app = ThrottleMiddleware(service(), throttle=throttle)
    assert not card.was_read.is_set()
    await request(app, "/x")
    assert card.was_read.wait(SOON_S)


async def test_mounted_app_starts_with_its_first_request(card: Card, throttle: Throttle) -> None:
    outer = FastAPI()
    outer.mount("/m", ThrottleMiddleware(service(), throttle=throttle))

    async def during() -> None:
        assert not card.was_read.is_set()
        assert await statuses(outer, "/m/x", TIMES) == EXACTLY
        assert card.was_read.wait(SOON_S)

    await lifespan(outer, during)


async def test_rejected_request_starts_it_too(card: Card) -> None:
    throttle = Throttle(Settings(gpu_unknown="closed", sample_interval_s=60.0), gpu=card)
    await request(ThrottleMiddleware(service(), throttle=throttle), "/x")
    assert card.was_read.wait(SOON_S)
    throttle.stop()


@pytest.mark.parametrize("error", [NotImplementedError, AssertionError])
async def test_lifespan_rejected_by_app_is_left_to_server(
    card: Card, throttle: Throttle, error: type[Exception]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise error
        await PlainTextResponse("ok")(scope, receive, send)

    wrapped = ThrottleMiddleware(app, throttle=throttle)
    with pytest.raises(error):
        await lifespan(wrapped)
    assert await statuses(wrapped, "/x", TIMES) == EXACTLY
    assert card.was_read.wait(SOON_S)


async def test_failed_startup_of_the_app_stops_the_sampling(card: Card, throttle: Throttle) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert card.was_read.wait(SOON_S)
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    assert await lifespan(ThrottleMiddleware(app, throttle=throttle)) == ["lifespan.startup.failed"]
    assert card.was_closed.is_set()


async def test_start_stop_start(card: Card, throttle: Throttle) -> None:
    app = ThrottleMiddleware(service(), throttle=throttle)
    for _ in range(3):
        await lifespan(app)
        assert card.was_closed.wait(SOON_S)
    throttle.stop()
    throttle.stop()
    throttle.start()
    throttle.start()
    assert card.was_read.wait(SOON_S)
    throttle.stop()
    assert card.was_closed.wait(SOON_S)
    assert await statuses(app, "/x", TIMES) == EXACTLY
    assert card.was_read.wait(SOON_S)


async def test_hanging_read_delays_no_request(card: Card, throttle: Throttle) -> None:
    card.go_on.clear()
    app = ThrottleMiddleware(service(), throttle=throttle)
    with anyio.fail_after(SOON_S):
        assert await statuses(app, "/x", TIMES) == EXACTLY
    assert throttle.control_state().telemetry is TelemetryState.STARTING


async def test_hanging_read_delays_no_start(
    card: Card, throttle: Throttle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.01)
    card.go_on.clear()

    async def during() -> None:
        card.go_on.set()

    said = await lifespan(ThrottleMiddleware(service(), throttle=throttle), during)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_limits_and_lifespan_under_both_loops(card: Card, throttle: Throttle, backend: str) -> None:
    app = ThrottleMiddleware(service(), throttle=throttle)
    counted: list[int] = []

    async def during() -> None:
        counted.extend(await statuses(app, "/x", TIMES))
        assert card.was_read.wait(SOON_S)

    said = anyio.run(lifespan, app, during, backend=backend)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert counted == EXACTLY


def test_each_request_on_a_loop_of_its_own(throttle: Throttle) -> None:
    app = ThrottleMiddleware(service(), throttle=throttle)
    answers = [asyncio.run(request(app, "/x")).status for _ in range(TIMES)]
    assert answers == EXACTLY


def test_loops_of_both_kinds_share_the_limit(throttle: Throttle) -> None:
    app = ThrottleMiddleware(service(), throttle=throttle)
    kinds = ["asyncio", "trio"] * 3
    assert [anyio.run(request, app, "/x", backend=kind).status for kind in kinds] == EXACTLY


def client_for(app: App) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starlette's own: its client will move from httpx to httpx2
        from starlette.testclient import TestClient
    return TestClient(app)


def test_test_client_with_a_context(card: Card, throttle: Throttle) -> None:
    with client_for(ThrottleMiddleware(service(), throttle=throttle)) as client:
        assert card.was_read.wait(SOON_S)
        assert [client.get("/x").status_code for _ in range(TIMES)] == EXACTLY
    assert card.was_closed.is_set()


def test_test_client_without_a_context(card: Card, throttle: Throttle) -> None:
    client = client_for(ThrottleMiddleware(service(), throttle=throttle))
    assert [client.get("/x").status_code for _ in range(TIMES)] == EXACTLY
    assert card.was_read.wait(SOON_S)


def test_test_client_sees_a_rejected_websocket(throttle: Throttle) -> None:
    client = client_for(ThrottleMiddleware(service(), throttle=throttle))
    from starlette.testclient import WebSocketDenialResponse

    for _ in range(LIMIT):
        client.get("/x")
    with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect("/ws"):
        pass
    assert caught.value.status_code == 429


async def test_httpx_transport(throttle: Throttle) -> None:
    transport = httpx.ASGITransport(app=ThrottleMiddleware(service(), throttle=throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = [await client.get("/x") for _ in range(TIMES)]
    assert [answer.status_code for answer in answers] == EXACTLY
    assert answers[-1].headers["content-type"] == "application/problem+json"


async def test_required_gpu_that_answers_lets_the_service_start(card: Card) -> None:
    throttle = Throttle(Settings(gpu_required=True, sample_interval_s=60.0), gpu=card)
    said = await lifespan(ThrottleMiddleware(service(), throttle=throttle))
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_required_gpu_that_is_silent_fails_the_start(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.go_on.clear()
    monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.01)
    throttle = Throttle(Settings(gpu_required=True, sample_interval_s=60.0), gpu=card)
    log: list[str] = []
    stopped: list[bool] = []
    monkeypatch.setattr(throttle, "stop", lambda: stopped.append(True))
    said = await lifespan(ThrottleMiddleware(service(log), throttle=throttle))
    assert said == ["lifespan.startup.failed"]
    assert log == []
    assert stopped == [True]


async def test_required_gpu_without_source_fails_start_with_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.01)
    app = ThrottleMiddleware(service(), throttle=throttle_for_tests(gpu_required=True))
    texts: list[str] = []

    async def send(message: Any) -> None:
        texts.append(message.get("message", ""))

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    await app({"type": "lifespan"}, receive, send)
    assert texts == ["no GPU sample within 0.01 s, and GPU_REQUIRED is set: fake: starting"]


async def test_state_of_the_lifespan_reaches_the_app(throttle: Throttle) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "lifespan", "state": {"a": 1}}
    call: Callable[[Any, Any, Any], Awaitable[None]] = ThrottleMiddleware(app, throttle=throttle)
    await call(scope, None, None)
    assert seen[0] is scope


def test_wrong_environment_stops_the_wrapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "nonsense")
    with pytest.raises(ConfigError, match="AUTOGLM_THROTTLE_USER_LIMIT"):
        ThrottleMiddleware(service())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_wrong_environment_fails_the_start_of_a_running_server(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "nonsense")
    app = service()
    app.add_middleware(ThrottleMiddleware)
    assert anyio.run(lifespan, app, backend=backend) == ["lifespan.startup.failed"]
    with pytest.raises(ConfigError, match="AUTOGLM_THROTTLE_USER_LIMIT"):
        anyio.run(request, app, "/x", backend=backend)


async def test_one_throttle_under_two_services_outlives_the_first(card: Card, throttle: Throttle) -> None:
    first, second = (ThrottleMiddleware(service(), throttle=throttle) for _ in range(2))

    async def during() -> None:
        await lifespan(first)
        assert card.was_closed.wait(SOON_S)
        assert await statuses(second, "/x", TIMES) == EXACTLY
        assert card.was_read.wait(SOON_S)

    await lifespan(second, during)
    assert card.was_closed.wait(SOON_S)
