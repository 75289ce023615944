"""``guard_refused``: what a guard inside an app has refused is 503, wherever the middleware stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.routing import Mount

from autoglm_throttle import RoutePolicy, ThrottleMiddleware
from autoglm_throttle.asgi.scope import SCOPE_KEY
from autoglm_throttle.fastapi import guard_rejected, limit
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.testing import ManualThrottle, assert_shed, throttle_for_tests
from autoglm_throttle.types import GuardRejected
from tests.asgi.guarded_app import FAILURES, REFUSED, SORRY, limits, outcomes
from tests.asgi.run_app import connect, request
from tests.fastapi.test_fastapi_limit import client


class ClientError(Exception):
    """The exception of a client's library."""


def caused_by_rejection() -> ClientError:
    error = ClientError("as openai raises it")
    error.__cause__ = REFUSED
    return error


def service(*, handled: bool = True) -> FastAPI:
    app = FastAPI()
    if handled:
        app.add_exception_handler(GuardRejected, guard_rejected)
        app.add_exception_handler(ClientError, guard_rejected)

    @app.get("/answer")
    async def answer() -> str:
        raise REFUSED

    @app.get("/thread")
    def thread() -> str:
        raise REFUSED

    @app.get("/wrapped")
    async def wrapped_by_a_client() -> str:
        raise caused_by_rejection()

    @app.get("/fails")
    async def fails() -> str:
        raise RuntimeError("boom")

    @app.get("/ok")
    async def ok() -> str:
        return "ok"

    @app.websocket("/ws")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        raise REFUSED

    return app


def added(throttle: ManualThrottle, app: FastAPI) -> Any:
    app.add_middleware(ThrottleMiddleware, throttle=throttle, breaker="app")
    return app


def wrapped(throttle: ManualThrottle, app: FastAPI) -> Any:
    return ThrottleMiddleware(app, throttle=throttle, breaker="app")


def mounted(throttle: ManualThrottle, app: FastAPI) -> Any:
    outer = Starlette(routes=[Mount("/", app)])
    outer.add_middleware(ThrottleMiddleware, throttle=throttle, breaker="app")
    return outer


ATTACH = [added, wrapped, mounted]
Attach = Callable[[ManualThrottle, FastAPI], Any]


@pytest.mark.parametrize("path", ["/answer", "/thread", "/wrapped"])  # FIELD 27
@pytest.mark.parametrize("attach", ATTACH)
async def test_rejected_guard_is_503_and_opens_nothing(attach: Attach, path: str) -> None:
    throttle = limits()
    async with client(attach(throttle, service())) as caller:
        for _ in range(2 * FAILURES):
            answer = await caller.get(path)
            assert_shed(answer, "breaker")
            assert answer.json()["reason"] == "breaker:vectors"
            assert answer.headers["retry-after"] == "8"
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["content-length"]) == len(answer.content)
            assert "secret" not in answer.text
    assert throttle.guard("app").view().last_failure == ""
    assert outcomes(throttle) == {"neutral": 2 * FAILURES}


@pytest.mark.parametrize(
    ("path", "routes"), [("/v1/answer", []), ("/in/answer", [RoutePolicy("/in/*", errors="openai")])]
)
async def test_rejected_guard_in_a_mount_has_the_format_of_its_path(
    path: str, routes: list[RoutePolicy]
) -> None:
    prefix = path.removesuffix("/answer")
    app = ThrottleMiddleware(Starlette(routes=[Mount(prefix, service())]), throttle=limits(routes=routes))
    async with client(app) as caller:
        answer = await caller.get(path)
        assert_shed(answer, "breaker")
        assert answer.json()["error"]["code"] == "breaker:vectors"


@pytest.mark.parametrize("breaker", [None, "app"])
async def test_an_app_that_adds_the_middleware_needs_no_handler(breaker: str | None) -> None:
    throttle, app = limits(), service(handled=False)
    app.add_middleware(ThrottleMiddleware, throttle=throttle, breaker=breaker)
    async with client(app) as caller:
        for path in ("/answer", "/wrapped"):
            answer = await caller.get(path)
            assert_shed(answer, "breaker")
            assert answer.headers["retry-after"] == "8"
        with pytest.raises(RuntimeError, match="boom"):
            await caller.get("/fails")
    assert outcomes(throttle) == {"neutral": 2, "failure": 1}


async def test_cancellation_is_not_answered_as_the_rejection_being_handled() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        try:
            raise REFUSED
        except GuardRejected as rejected:
            raise asyncio.CancelledError from rejected

    throttle = limits()
    with pytest.raises(asyncio.CancelledError):
        await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"neutral": 1}


async def test_wrapped_rejection_in_mid_response_is_raised_and_neutral() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ClientError from REFUSED

    throttle = limits()
    with pytest.raises(ClientError):
        await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"neutral": 1}


@pytest.mark.parametrize("attach", ATTACH)
async def test_other_failures_open_it(attach: Attach) -> None:
    throttle = limits()
    transport = httpx.ASGITransport(attach(throttle, service()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as caller:
        statuses = [(await caller.get("/fails")).status_code for _ in range(FAILURES)]
        assert statuses == [500] * FAILURES
        answer = await caller.get("/ok")
    assert (answer.status_code, answer.json()["reason"]) == (503, "breaker:app")


@pytest.mark.parametrize("attach", ATTACH)
@pytest.mark.parametrize("path", ["/answer", "/fails"])
async def test_a_fallback_answers_for_both(attach: Attach, path: str) -> None:
    throttle = limits()
    throttle.feature("app", fallback=Fallback(static=SORRY))
    async with client(attach(throttle, service())) as caller:  # where exceptions of the app would be raised
        answer = await caller.get(path)
    assert (answer.status_code, answer.text) == (200, "sorry")
    assert answer.headers["x-degraded"] == f"static; cause={'failures' if path == '/answer' else 'error'}"
    assert throttle.guard("app").view().streak == (0 if path == "/answer" else 1)


async def test_without_a_middleware_it_answers_all_the_same() -> None:
    async with client(service()) as caller:
        assert_shed(await caller.get("/answer"), "breaker")


@pytest.mark.parametrize("attach", ATTACH)
async def test_websockets_are_closed(attach: Attach) -> None:
    throttle = limits()
    answer = await connect(attach(throttle, service()), "/ws")
    assert answer.close_code == 1013
    assert throttle.guard("app").view().last_failure == ""


async def test_another_exception_is_none_of_its_business() -> None:
    with pytest.raises(KeyError):
        await guard_rejected(None, KeyError("x"))  # type: ignore[arg-type]  # it is not looked at


async def test_further_charge_shed_by_load_opens_nothing() -> None:
    throttle = limits()
    busy = throttle_for_tests()
    busy.gpu.utilization_pct = 99
    busy.tick(3)
    app = FastAPI()

    @app.get("/dear", dependencies=[Depends(limit(cost=4, throttle=busy))])
    async def dear() -> str:
        return "dear"

    async with client(ThrottleMiddleware(app, throttle=throttle, breaker="app")) as caller:
        assert [(await caller.get("/dear")).status_code for _ in range(FAILURES)] == [503] * FAILURES
    assert throttle.guard("app").view().last_failure == ""


@pytest.mark.parametrize("error", [REFUSED, caused_by_rejection(), RuntimeError("boom")])
async def test_charge_of_a_route_ends_neutral_by_a_rejected_guard(error: Exception) -> None:
    throttle, app = limits(), FastAPI()

    @app.get("/", dependencies=[Depends(limit(throttle=throttle))])
    async def answer() -> None:
        raise error

    async with client(app) as caller:
        with pytest.raises(type(error)):
            await caller.get("/")
    assert outcomes(throttle) == {"failure" if isinstance(error, RuntimeError) else "neutral": 1}


async def test_no_mark_is_left_where_no_breaker_listens() -> None:
    seen: list[Any] = []
    app = service()

    @app.middleware("http")
    async def look(request: Any, call_next: Any) -> Any:
        answer = await call_next(request)
        seen.append(request.scope.get(SCOPE_KEY))
        return answer

    async with client(app) as caller:
        await caller.get("/answer")
    assert seen == [None]
