"""One HTTP exchange of the simulated service: reads a JSON object, answers with one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

BODY_BYTES = 1 << 20
"""A longer request body is rejected with 413."""

# Built once: the simulated service should cost little beside the code under test.
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


class BadRequestError(Exception):
    """An invalid request.

    Args:
        status: HTTP status of the answer.
        message: the problem, for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class SimulatedResponse:
    """Request and answer of one ASGI call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._receive = receive
        self._send = send

    async def body(self) -> dict[str, object]:
        """Read the request's JSON object; an empty body counts as an empty object.

        Raises:
            BadRequestError: no JSON object, or more than ``BODY_BYTES``.
            ClientDisconnected: the client disconnected.
        """
        raw = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            raw += message.get("body", b"")
            more = message.get("more_body", False)
            if len(raw) > BODY_BYTES:
                raise BadRequestError(413, f"the body is larger than {BODY_BYTES} bytes")
        try:
            read = _decode(raw.decode()) if raw else {}
        except (ValueError, RecursionError):
            raise BadRequestError(400, "the body is not JSON") from None
        if not isinstance(read, dict):
            raise BadRequestError(400, "the body is not a JSON object")
        return read

    async def wait_disconnected(self) -> None:
        """Wait until the client has disconnected; call it after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, content: Mapping[str, object]) -> None:
        """Send a complete JSON answer."""
        body = _encode(content).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        """Start an answer of server-sent events."""
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def event(self, data: Mapping[str, object] | str, *, last: bool = False) -> None:
        """Send one event; the last one ends the answer."""
        text = data if isinstance(data, str) else _encode(data)
        body = f"data: {text}\n\n".encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


def integer_field(body: Mapping[str, object], name: str, default: int, least: int) -> int:
    """Read an integer from a request's body.

    Raises:
        BadRequestError: not an integer from ``least`` to 1 000 000.
    """
    number = body.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= 1_000_000:
        raise BadRequestError(400, f"{name} must be a whole number from {least} to 1000000")
    return number
