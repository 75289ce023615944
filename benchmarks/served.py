"""The apps that `benchmarks.serve` starts, one process each: ``uvicorn benchmarks.served:ours``."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import asgi_rows

LIMIT = 100_000
"""Requests a minute: the one client of the benchmark stays below it."""

BODY = b'{"label": "cat", "score": 0.98}'


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers /v1/predict at once, and /cpu with the seconds of CPU that this process has used."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = b"%.6f" % time.process_time() if scope["path"] == "/cpu" else BODY
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


bare = app
ours = asgi_rows.ours(app, user_limit=f"{LIMIT}/minute", rate_mid_rps=1e6)
asgi_ratelimit = asgi_rows.asgi_ratelimit(app, LIMIT)
limits_fixed = asgi_rows.limits_fixed(app=app, limit=LIMIT)
