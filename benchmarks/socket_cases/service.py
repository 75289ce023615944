"""The service of the cases: streams, uploads, downloads, a simulated GPU, and the calls of two packages.

====== ===================== ==========================================================
GET    /plain                answers at once
GET    /feed                 an event stream: one event, then idle until the client leaves
POST   /upload               reads the body, then answers
GET    /download             a large streamed body
POST   /v1/predict           a batch of a simulated GPU of 40 requests/s
POST   /v1/chat/completions  one of ``SLOTS`` slots for ``CALL_S`` seconds, as openai reads it
POST   /v1/messages          the same, as anthropic reads it
GET    /state                counters of the throttle; exempt
====== ===================== ==========================================================
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec
from autoglm_throttle.testing.simulated import service as gpu_service

SLOTS, CALL_S = 8, float(os.environ.get("FIELD_CALL_S", "1.0"))
PART, PARTS = b"x" * 65_536, 512
"""A download of 32 MiB: more than the buffers of both ends hold."""

WORK = BatchSpec(max_batch=4, base_s=0.010, capacity_rps=40.0)
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "simulated",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}},
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "simulated",
    "content": [{"type": "text", "text": "yes"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}

throttle = Throttle.from_env()
slots = asyncio.Semaphore(SLOTS)
gpu = gpu_service(SimulatedGpu(SimulatedGpuSpec(work=WORK, request_bytes=0)))


async def answer(send: Any, body: bytes, status: int = 200, kind: bytes = b"application/json") -> None:
    """Send a whole answer."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read(receive: Any) -> int:
    """Read the body; return its length."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return size
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return size


async def state(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer with the state of the throttle, as text wherever JSON has no form for it."""
    snapshot = throttle.snapshot()
    limiter = snapshot.concurrency
    assert limiter is not None
    requests: dict[str, int] = {}
    for (_, name, _), count in snapshot.requests.items():
        requests[name] = requests.get(name, 0) + count
    view = {
        "pid": os.getpid(),
        "limit": limiter.limit,
        "in_flight": limiter.in_flight,
        "waiting": sum(limiter.waiting),
        "paused": getattr(limiter, "paused", 0),
        "requests": requests,
        "oddities": dict(snapshot.oddities),
    }
    await answer(send, json.dumps(view, default=str).encode())


async def plain(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer at once."""
    await answer(send, b"ok", kind=b"text/plain")


async def feed(_scope: Any, receive: Any, send: Any) -> None:
    """Send one event, then wait until the client leaves."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: hello\n\n", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def upload(_scope: Any, receive: Any, send: Any) -> None:
    """Read a body to its end."""
    await answer(send, b"%d" % await read(receive), kind=b"text/plain")


async def download(_scope: Any, _receive: Any, send: Any) -> None:
    """Send a large body in parts."""
    length = b"%d" % (len(PART) * PARTS)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(PARTS):
        await send({"type": "http.response.body", "body": PART, "more_body": number + 1 < PARTS})


async def call(scope: Any, receive: Any, send: Any) -> None:
    """Work for ``CALL_S`` seconds in one of the slots of the service."""
    await read(receive)
    async with slots:
        await asyncio.sleep(CALL_S)
    body = CHAT if scope["path"] == "/v1/chat/completions" else MESSAGE
    await answer(send, json.dumps(body).encode())


ROUTES = {
    "/state": state,
    "/plain": plain,
    "/feed": feed,
    "/upload": upload,
    "/download": download,
    "/v1/chat/completions": call,
    "/v1/messages": call,
}


async def service(scope: Any, receive: Any, send: Any) -> None:
    """Serve a request; the simulated GPU answers 404 to unknown paths."""
    handler = ROUTES.get(scope["path"], gpu) if scope["type"] == "http" else gpu
    await handler(scope, receive, send)


app = ThrottleMiddleware(service, throttle=throttle)
