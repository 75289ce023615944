"""Drives an ASGI application by hand, without a server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[bytes, bytes]
    chunks: list[bytes]

    @property
    def json(self) -> Any:
        return json.loads(b"".join(self.chunks))


async def ask(app: ASGIApp, method: str, path: str, *pieces: bytes, gone: bool = False) -> Answer:
    """One request; the body comes in the given pieces, and the client may leave after them."""
    inbox: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": gone or index < len(pieces) - 1}
        for index, piece in enumerate(pieces or (b"",))
    ]
    inbox.append({"type": "http.disconnect"})
    outbox: list[Message] = []

    async def receive() -> Message:
        return inbox.pop(0)

    async def send(message: Message) -> None:
        outbox.append(message)

    await app(
        {"type": "http", "method": method, "path": path, "headers": [], "client": ("127.0.0.1", 1)},
        receive,
        send,
    )
    if not outbox:
        return Answer(0, {}, [])
    return Answer(
        outbox[0]["status"],
        dict(outbox[0]["headers"]),
        [message["body"] for message in outbox[1:]],
    )
