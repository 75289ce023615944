"""A service with few slots, one by default, for tests of queued requests on real servers."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Priority, Settings, Throttle
from autoglm_throttle.asgi import Caller, ThrottleMiddleware
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.types import WebSocketMode

TOLD = ("/state", "/release", "/complaints")
PLACES = int(os.environ.get("PLACES", "1"))
SLO_S = float(os.environ.get("SLO_S", "100"))
RATE_RPS, BURST_S = float(os.environ.get("RATE_RPS", "0.2")), 3_600.0
"""Almost no refill, so that a token which does not come back stays away."""

UNITS = 1_000_000

throttle = Throttle(
    Settings(
        gpu="none",
        policy="concurrency",
        inflight_start=PLACES,
        inflight_floor=PLACES,
        inflight_max=PLACES,
        slo_s=SLO_S,
        wait_budget=1.0,
        rate_mid_rps=RATE_RPS,
        burst_s=BURST_S,
        user_limit=f"{UNITS}/hour",
        exempt_paths=TOLD,
        websockets=WebSocketMode(os.environ.get("WEBSOCKETS", "slot")),
        dry_run=bool(os.environ.get("DRY_RUN")),
        # One class of work: beside the long "hold" all others would be negligible, and queue for nothing.
        routes=[RoutePolicy("/*", name="all")],
    )
)
releases: list[anyio.Event] = []
calls = 0
complaints: list[str] = []


def listen() -> None:
    """Keep what the event loop complains about; trio has no such complaints."""
    with suppress(RuntimeError):
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(str(context["message"]))
        )


async def state(request: Request) -> Response:
    """The state of the throttle."""
    listen()
    snapshot = throttle.snapshot()
    gate = snapshot.concurrency
    assert gate is not None
    requests = {name: 0 for _, name, _ in snapshot.requests}
    for (_, name, _), number in snapshot.requests.items():
        requests[name] += number
    return JSONResponse(
        {
            "in_flight": gate.in_flight,
            "waiting": sum(gate.waiting),
            "bodies": app.slot_watch.bodies,
            "active": sum(snapshot.active.values()),
            "tokens": round(snapshot.tokens[Priority.MID], 1),
            "left": snapshot.oddities.get("disconnected_in_queue", 0),
            "would_reject": sum(snapshot.would_reject.values()),
            "held": len(releases),
            "calls": calls,
            "ended": sum(snapshot.outcomes.values()),
            "stale": snapshot.stale_results,
            **requests,
        }
    )


async def release(request: Request) -> Response:
    """Let all go on that are held."""
    for event in releases:
        event.set()
    releases.clear()
    return PlainTextResponse("released")


async def complained(request: Request) -> Response:
    """The errors reported by the event loop; forgotten tasks report when they are collected."""
    gc.collect()
    await anyio.lowlevel.checkpoint()
    return JSONResponse(complaints)


async def hold(request: Request) -> Response:
    """Keep the place until it is released."""
    event = anyio.Event()
    releases.append(event)
    try:
        await event.wait()
    finally:
        if event in releases:
            releases.remove(event)
    return PlainTextResponse("held")


async def brief(request: Request) -> Response:
    """Take a moment."""
    await anyio.sleep(0.003)
    return PlainTextResponse("brief")


async def digest(request: Request) -> Response:
    """How much came, and whether it was all."""
    global calls  # noqa: PLW0603 - one server, one event loop
    calls += 1
    body = hashlib.sha256()
    size = 0
    async for part in request.stream():
        body.update(part)
        size += len(part)
    return JSONResponse({"size": size, "sha256": body.hexdigest()})


async def unread(request: Request) -> Response:
    """Answer without a look at the body."""
    return PlainTextResponse("unread")


async def fails(request: Request) -> Response:
    """End in an error."""
    raise RuntimeError("meant to fail")


async def endless(request: Request) -> Response:
    """Send until the client disconnects."""

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"data: more\n\n"
            await anyio.sleep(0.01)

    return StreamingResponse(parts(), media_type="text/event-stream")


async def echo(websocket: WebSocket) -> None:
    """Send each text back."""
    global calls  # noqa: PLW0603 - one server, one event loop
    calls += 1
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


service = Starlette(
    routes=[
        Route("/state", state),
        Route("/release", release),
        Route("/complaints", complained),
        Route("/hold", hold),
        Route("/brief", brief),
        Route("/digest", digest, methods=["GET", "POST"]),
        Route("/unread", unread, methods=["POST"]),
        Route("/fails", fails),
        Route("/endless", endless),
        WebSocketRoute("/ws", echo),
    ]
)


async def bounded(scope: Any, receive: Any, send: Any) -> None:
    """The service; a lifespan is not its business."""
    await service(scope, receive, send)


def everybody(scope: Any) -> Caller:
    """One user for all: a server may not know the address of a client that has gone already."""
    return Caller("everybody", verified=True)


app = ThrottleMiddleware(bounded, throttle=throttle, identify=everybody)
