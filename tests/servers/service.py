"""The service that real servers run: it limits, streams, and reports its throttle's state."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import Caller, ThrottleMiddleware
from autoglm_throttle.types import GpuSample
from tests.gpu.sampler_doubles import Source

LIMIT = 5
CHUNKS = 4
TOLD = ("/state", "/next", "/hang", "/release", "/restart")

may_read = threading.Event()
may_read.set()
asked_for = 0


def reading() -> list[GpuSample]:
    """One GPU reading; it hangs as long as the test wants."""
    may_read.wait()
    now = time.monotonic()
    return [GpuSample(device="FAKE-0", index=0, taken_at_s=now, source="fake", utilization_pct=12.0)]


throttle = Throttle(
    Settings(
        user_limit=f"{LIMIT}/minute",
        exempt_paths=TOLD,
        rate_mid_rps=1_000_000,
        sample_interval_s=0.2,
    ),
    gpu=Source(reading, name="fake"),
)


async def state(request: Request) -> Response:
    """The state of this worker's throttle, and its process ID."""
    snapshot = throttle.snapshot()
    return JSONResponse(
        {
            "pid": os.getpid(),
            "telemetry": snapshot.control.telemetry.value,
            "active": sum(snapshot.active.values()),
            "age_s": max((snapshot.taken_at_s - row.taken_at_s for row in snapshot.devices), default=None),
            "sampler": [t.name for t in threading.enumerate() if t.name.startswith("autoglm-throttle-gpu")],
        }
    )


async def ok(request: Request) -> Response:
    """Answer at once."""
    return PlainTextResponse("ok")


async def hang(request: Request) -> Response:
    """Let every further reading hang."""
    may_read.clear()
    return PlainTextResponse("hangs")


async def release(request: Request) -> Response:
    """Let the hanging reading go on."""
    may_read.set()
    return PlainTextResponse("reads")


def restart(request: Request) -> Response:
    """Stop and start the throttle, on a thread of its own."""
    throttle.stop()
    throttle.start()
    return PlainTextResponse("again")


async def next_chunk(request: Request) -> Response:
    """Allow the stream one more chunk."""
    global asked_for  # noqa: PLW0603 - one stream at a time, told by another request
    asked_for += 1
    return PlainTextResponse(str(asked_for))


async def chunks() -> AsyncIterator[bytes]:
    """Each chunk waits until the client has said that it has the one before."""
    for number in range(CHUNKS):
        while asked_for < number:  # noqa: ASYNC110 - asyncio and trio alike, and set by another request
            await anyio.sleep(0.002)
        yield b"data: %d\n\n" % number


async def stream(request: Request) -> Response:
    """A stream of server-sent events in step with its client."""
    global asked_for  # noqa: PLW0603 - as above
    asked_for = 0
    return StreamingResponse(chunks(), media_type="text/event-stream")


async def echo(websocket: WebSocket) -> None:
    """Send each text back."""
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


service = Starlette(
    routes=[
        Route("/state", state),
        Route("/ok", ok),
        Route("/hang", hang),
        Route("/release", release),
        Route("/restart", restart),
        Route("/next", next_chunk),
        Route("/stream", stream),
        WebSocketRoute("/ws", echo),
    ]
)


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The service for those who think that a lifespan is an error."""
    if scope["type"] == "lifespan":
        raise NotImplementedError("no lifespan here")
    await service(scope, receive, send)


def by_key(scope: Any) -> Caller | None:
    """Each key is a caller of its own, so that no test gets in the way of another."""
    key = dict(scope["headers"]).get(b"x-api-key")
    return Caller(key.decode(), verified=True) if key else None


app = ThrottleMiddleware(service, throttle=throttle, identify=by_key)
refusing = ThrottleMiddleware(bare, throttle=throttle, identify=by_key)
