"""A worker in front of a service that all workers share: it admits requests and forwards them."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from autoglm_throttle import Throttle, ThrottleMiddleware

SHARED_PORT = int(os.environ["SHARED_PORT"])
ASK = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"

throttle = Throttle.from_env()
idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []


async def predict() -> tuple[int, bytes]:
    """Ask the shared service; a connection is used again once its answer is whole."""
    reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", SHARED_PORT)
    try:
        writer.write(ASK)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
    except BaseException:
        writer.close()
        raise
    idle.append((reader, writer))
    return status, body


def state() -> bytes:
    """The state of this worker's throttle."""
    snapshot = throttle.snapshot()
    gate = snapshot.concurrency
    assert gate is not None
    return json.dumps(
        {
            "pid": os.getpid(),
            "rates": [snapshot.rate_limit_rps[priority] for priority in sorted(snapshot.rate_limit_rps)],
            "limit": gate.limit,
            "service_rps": gate.service_rps,
            "in_flight": gate.in_flight,
            "waiting": sum(gate.waiting),
            "admitted": sum(n for (_, name, _), n in snapshot.requests.items() if name == "admitted"),
        }
    ).encode()


async def service(scope: Any, receive: Any, send: Any) -> None:
    """Pass a request on."""
    if scope["type"] != "http":
        return
    status, body = (200, state()) if scope["path"] == "/state" else await predict()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


app = ThrottleMiddleware(service, throttle=throttle)
