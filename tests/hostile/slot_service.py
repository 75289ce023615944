"""A service with eight slots whose endpoints read bodies and send streams; it reports its slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, permit_of
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.types import WebSocketMode

SLOTS = 8
SLO_S = 100.0
"""Ordinary requests wait instead of being rejected, on a slow machine too."""

PART = b"x" * 65_536

throttle = Throttle(
    Settings(
        gpu="none",
        policy="concurrency",
        inflight_start=SLOTS,
        inflight_floor=SLOTS,
        inflight_max=SLOTS,
        slo_s=SLO_S,
        wait_budget=1.0,
        slot_idle_s=0.1,
        rate_high_rps=1_000_000,
        rate_mid_rps=1_000_000,
        rate_low_rps=1_000_000,
        exempt_paths="/state",
        deadline_header="x-deadline",
        websockets=WebSocketMode.SLOT,
        # One class of work: beside long requests the short ones would be negligible, and need no slot.
        routes=[RoutePolicy("/*", name="all")],
    )
)
calls = Counter[str]()


def report(request: Request, size: int = 0) -> Response:
    """Report what the throttle has made of a request."""
    calls["all"] += 1
    permit = permit_of(request.scope)
    assert permit is not None
    demand = permit.demand
    fields = len(request.scope["headers"])
    found = {"priority": demand.priority.label, "slo_s": demand.slo_s, "fields": fields, "size": size}
    return JSONResponse(found | {"user": demand.user})


async def brief(request: Request) -> Response:
    """Answer at once."""
    return report(request)


async def upload(request: Request) -> Response:
    """Read the whole body."""
    size = 0
    async for part in request.stream():
        size += len(part)
    return report(request, size)


async def download(request: Request) -> Response:
    """Send large parts until the client disconnects."""

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield PART
            await anyio.lowlevel.checkpoint()

    return StreamingResponse(parts())


async def feed(request: Request) -> Response:
    """Send one event, and nothing else until the client disconnects."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        await anyio.sleep_forever()

    return StreamingResponse(parts(), media_type="text/event-stream")


async def chat(websocket: WebSocket) -> None:
    """Send each text back."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def state(request: Request) -> Response:
    """Report the requests that hold anything."""
    snapshot = throttle.snapshot()
    limit = snapshot.concurrency
    assert limit is not None
    held = {"in_flight": limit.in_flight, "paused": limit.paused, "waiting": sum(limit.waiting)}
    held |= {"bodies": app.slot_watch.bodies, "active": sum(snapshot.active.values())}
    counted = sum(number for (_, name, _), number in snapshot.requests.items() if name == "admitted")
    return JSONResponse({"held": held, "slo_s": limit.slo_s, "admitted": counted, "calls": calls["all"]})


service = Starlette(
    routes=[
        Route("/state", state),
        Route("/brief", brief, methods=["GET", "POST"]),
        Route("/upload", upload, methods=["GET", "POST"]),
        Route("/download", download),
        Route("/feed", feed),
        WebSocketRoute("/ws", chat),
    ]
)
app = ThrottleMiddleware(service, throttle=throttle)
