"""Applications of the frameworks people use, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.inproc import VirtualTimeError, run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource


def a_load(target: str, *, rate_rps: float = 20.0) -> RequestSource:
    shape = LoadShape((LoadLevel(rate_rps, 1.0),))
    return RequestSource(
        make_plan(shape, Arrivals.UNIFORM, PriorityMix(), 1), (PlannedRequest(target=target),)
    )


async def words() -> AsyncIterator[bytes]:
    for _ in range(4):
        await asyncio.sleep(0.25)
        yield b"word "


def test_a_streaming_response_streams() -> None:
    async def stream(_request: Asked) -> Response:
        return StreamingResponse(words())

    sheet = run_inprocess(Starlette(routes=[Route("/", stream, methods=["POST"])]), a_load("/")).request_log
    assert set(sheet.results) == {RequestResult.OK}
    assert list(sheet.first_byte_s) == pytest.approx([0.25] * 20)
    assert list(sheet.response_s) == pytest.approx([1.0] * 20)


def test_stream_of_a_disconnected_client_is_stopped() -> None:
    stopped: list[str] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                await asyncio.sleep(0.01)
                yield b"word "
        finally:
            stopped.append("stopped")

    async def stream(_request: Asked) -> Response:
        return StreamingResponse(endless())

    sheet = run_inprocess(
        Starlette(routes=[Route("/", stream, methods=["POST"])]), a_load("/"), abort=1.0
    ).request_log
    assert set(sheet.results) == {RequestResult.CONNECTION}
    assert stopped == ["stopped"] * 20


def test_base_http_middleware_passes_everything_on() -> None:
    class Timed(BaseHTTPMiddleware):
        async def dispatch(
            self, request: Asked, call_next: Callable[[Asked], Awaitable[Response]]
        ) -> Response:
            answer = await call_next(request)
            await asyncio.sleep(0.5)
            return answer

    async def stream(request: Asked) -> Response:
        assert await request.body() == b"{}"
        return StreamingResponse(words())

    app = Starlette(routes=[Route("/", stream, methods=["POST"])], middleware=[Middleware(Timed)])
    sheet = run_inprocess(app, a_load("/")).request_log
    assert set(sheet.results) == {RequestResult.OK}
    assert list(sheet.response_s) == pytest.approx([1.25] * 20)


def dependency() -> int:
    return 1


def fastapi_app() -> FastAPI:
    app = FastAPI()

    @app.post("/async")
    async def fine(asked: dict[str, int]) -> dict[str, int]:
        async with asyncio.timeout(1.0):
            await asyncio.sleep(0.5)
        return asked

    @app.post("/sync")
    def blocks() -> int:
        return 1

    @app.post("/dependency")
    async def depends(one: Annotated[int, Depends(dependency)]) -> int:
        return one

    @app.post("/background")
    async def later(tasks: BackgroundTasks) -> int:
        tasks.add_task(dependency)
        return 1

    return app


def test_async_endpoints_of_fastapi_are_served() -> None:
    sheet = run_inprocess(fastapi_app(), a_load("/async")).request_log
    assert set(sheet.results) == {RequestResult.OK}
    assert list(sheet.response_s) == pytest.approx([0.5] * 20)


@pytest.mark.parametrize("path", ["/sync", "/dependency", "/background"])
def test_sync_endpoint_of_fastapi_is_rejected_by_name(path: str) -> None:
    with pytest.raises(VirtualTimeError, match=f"POST {path}: threads do not run .* 'async def'"):
        run_inprocess(fastapi_app(), a_load(path))


def test_lifespan_state_is_passed_to_each_request() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, str]]:
        await asyncio.sleep(5.0)
        said.append("up")
        yield {"model": "loaded"}
        await asyncio.sleep(5.0)
        said.append("down")

    async def tell(request: Asked) -> Response:
        said.append(request.state.model)
        request.state.model = "spoilt"
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/", tell, methods=["POST"])], lifespan=lifespan)
    sheet = run_inprocess(app, a_load("/", rate_rps=2.0)).request_log
    assert said == ["up", "loaded", "loaded", "down"]
    assert max(sheet.response_s) < 1e-6


@pytest.mark.parametrize("when", ["start", "shut down"])
def test_failed_lifespan_is_reported(when: str) -> None:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        if when == "start":
            raise ValueError("planted")
        yield
        raise ValueError("planted")

    async def fine(_request: Asked) -> Response:
        return JSONResponse({})

    app = Starlette(routes=[Route("/", fine, methods=["POST"])], lifespan=lifespan)
    with pytest.raises(TrafficError, match=rf"the application did not {when}: [\s\S]*planted"):
        run_inprocess(app, a_load("/"))


def test_an_application_that_ends_its_lifespan_early_is_served() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        await PlainTextResponse("")(scope, receive, send)

    assert set(run_inprocess(app, a_load("/")).request_log.results) == {RequestResult.OK}


def test_an_application_that_never_starts_is_a_standstill() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    never: ASGIApp = app
    with pytest.raises(RuntimeError, match=r"tasks wait forever: .*lifespan"):
        run_inprocess(never, a_load("/"))
