"""A service behind a breaker of its own, under real servers: it fails, and its clients leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware

OPENS_AFTER = 1000
"""Failures in a row: more than any test makes, so that all of them can be counted."""

throttle = Throttle(
    Settings(
        gpu="none",
        policy="fixed",
        exempt_paths=("/state",),
        breaker_failures=OPENS_AFTER,
        rate_mid_rps=100_000,
    )
)
under_way = 0


async def state(request: Request) -> Response:
    """The figures of the breaker."""
    view = throttle.guard("app").view()
    counted = throttle.snapshot()
    outcomes = {outcome.value: 0 for _, outcome in counted.outcomes}
    for (_, outcome), number in counted.outcomes.items():
        outcomes[outcome.value] += number
    return JSONResponse(
        {
            "streak": view.streak,
            "last_failure": view.last_failure,
            "state": view.state,
            "under_way": under_way,
            "active": sum(counted.active.values()),
            **outcomes,
        }
    )


async def ok(request: Request) -> Response:
    """Answer at once."""
    return PlainTextResponse("ok")


async def fails(request: Request) -> Response:
    """Fail before the answer begins."""
    raise RuntimeError("meant to fail")


async def breaks(request: Request) -> Response:
    """Fail in the midst of the answer."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        raise RuntimeError("meant to break off")

    return StreamingResponse(parts())


async def endless(request: Request) -> Response:
    """Send until the client disconnects."""

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            await anyio.sleep(0.002)

    return StreamingResponse(parts())


async def digest(request: Request) -> Response:
    """Read it all."""
    return PlainTextResponse(str(len(await request.body())))


async def slow(request: Request) -> Response:
    """Take longer than a client waits."""
    await anyio.sleep(0.1)
    return PlainTextResponse("late")


async def echo(websocket: WebSocket) -> None:
    """Send each text back."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def raw(scope: Any, receive: Any, send: Any) -> None:
    """An app without any framework, which does not listen for its client."""
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(1 if scope["path"].endswith("breaks") else 50):
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await anyio.sleep(0.002)
    if scope["path"].endswith("breaks"):
        raise RuntimeError("meant to break off")
    if not scope["path"].endswith("returns"):
        await send({"type": "http.response.body"})


service = Starlette(
    routes=[
        Route("/state", state),
        Route("/ok", ok),
        Route("/fails", fails),
        Route("/breaks", breaks),
        Route("/endless", endless),
        Route("/digest", digest, methods=["POST"]),
        Route("/slow", slow),
        Mount("/raw", raw),
        WebSocketRoute("/ws", echo),
    ]
)


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """The service, with an eye on what is under way."""
    global under_way  # noqa: PLW0603 - one server, one event loop
    if scope["type"] == "lifespan" or scope["path"] == "/state":
        await service(scope, receive, send)
        return
    under_way += 1
    try:
        await service(scope, receive, send)
    finally:
        under_way -= 1


app = ThrottleMiddleware(counting, throttle=throttle, breaker="app")
