"""Apps of the benchmark of the gateway: an upstream, a bare proxy of httpx and Starlette, and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.gateway import Gateway

EVENTS = 1000
ANSWER = b'{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"' + b"word " * 80 + b'"}]}'
EVENT = b'data: {"id":"cmpl-1","object":"text_completion.chunk","choices":[{"index":0,"text":" word"}]}\n\n'
HOP_BY_HOP = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


def upstream() -> Upstream:
    """Make the upstream."""
    return Upstream()


class Upstream:
    """An app that does no work: a short answer, a stream of single events, and a stream without an end."""

    def __init__(self) -> None:
        self._left: asyncio.Queue[float] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        path = scope["path"]
        if path == "/left":
            await _answer(send, b"%20.6f" % await self._left.get(), b"text/plain")
        elif path == "/stream":
            await _stream(send)
        elif path == "/endless":
            await send(_start(b"text/event-stream"))
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self._left.put_nowait(time.monotonic())
        else:
            await _answer(send, ANSWER, b"application/json")


async def _stream(send: Any) -> None:
    await send(_start(b"text/event-stream"))
    for _ in range(EVENTS):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(0)  # each event is a write of its own, as from an engine
    await send({"type": "http.response.body", "body": b""})


def _start(kind: bytes, *more: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), *more]}


async def _answer(send: Any, body: bytes, kind: bytes) -> None:
    await send(_start(kind, (b"content-length", b"%d" % len(body))))
    await send({"type": "http.response.body", "body": body})


def bare() -> Starlette:
    """The usual proxy of a few lines: it streams, and does nothing else."""
    url = httpx.URL(os.environ["BENCHMARK_UPSTREAM"])
    client = httpx.AsyncClient(
        timeout=httpx.Timeout(600.0, connect=5.0),
        limits=httpx.Limits(keepalive_expiry=2.0),
    )

    async def forward(request: Request) -> StreamingResponse:
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        path = request.scope["raw_path"] + (b"?" + request.url.query.encode() if request.url.query else b"")
        sent = client.build_request(
            request.method, url.copy_with(raw_path=path), headers=headers, content=request.stream()
        )
        response = await client.send(sent, stream=True)
        kept = {name: value for name, value in response.headers.items() if name not in HOP_BY_HOP}
        return StreamingResponse(
            response.aiter_raw(), response.status_code, kept, background=BackgroundTask(response.aclose)
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=lifespan)


def gateway() -> Gateway:
    """The gateway with a user limit and all defaults; only the limits are high enough for the load."""
    settings = Settings(
        gpu="none",
        user_limit="16000000/minute",
        rate_mid_rps=1e6,  # a quiet machine does more than the default rate
        inflight_start=256,
        inflight_floor=256,
    )
    return Gateway([os.environ["BENCHMARK_UPSTREAM"]], throttle=Throttle(settings))
