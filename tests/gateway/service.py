"""An upstream in a process of its own. A line on its standard input lets its streams end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

_end = asyncio.Event()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _end.set)
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"] == "/stream":
        fields = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
        await _end.wait()
        await send({"type": "http.response.body", "body": b"data: last\n\n"})
    else:
        print("work", body.decode(), flush=True)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="info", access_log=False, loop="asyncio")
