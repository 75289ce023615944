"""One in-process HTTP exchange between the ASGI application and a client."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import Message

from autoglm_throttle.traffic.request_log import REJECTION_BYTES, RequestResult, classify_response

BODILESS = (204, 304)
"""Statuses without a body, regardless of the stated length."""


class ExchangeListener(Protocol):
    """Receives the events of an exchange."""

    def on_message(self, index: int) -> None:
        """The first byte of the response body arrived."""

    def ended(self, exchange: AsgiExchange, result: RequestResult) -> None:
        """The client has its response, or disconnected without one."""


class AsgiResponse:
    """The part of a response that the client has received."""

    __slots__ = ("body_start", "bytes_left", "degraded", "retry_after", "status")

    def __init__(self) -> None:
        self.status: int = 0
        """0 until the response starts."""
        self.retry_after: bytes | None = None
        self.degraded: bool = False
        self.bytes_left: int | None = None
        """Bytes of the body that must follow; None: its length is not stated."""
        self.body_start: bytes | None = None
        """Start of the body, for parsing the reason of a rejection; None before its first byte."""

    def start(self, message: Message, *, bodiless: bool) -> None:
        """Read the status and the fields.

        Raises:
            RuntimeError: the status is not valid.
        """
        status = message["status"]
        if not isinstance(status, int) or not 200 <= status <= 999:
            raise RuntimeError(f"{status!r} is no status of an answer: 200 to 999")
        self.status = status
        for name, value in message.get("headers", ()):
            field = name.lower()
            if field == b"retry-after":
                self.retry_after = value
            elif field == b"x-degraded":
                self.degraded = True
            elif field == b"content-length" and value.isdigit():
                self.bytes_left = int(value)
        if bodiless or status in BODILESS:
            self.bytes_left = None

    def classify(self) -> RequestResult:
        """Result of a complete response."""
        return classify_response(
            self.status, retry_after=self.retry_after is not None, degraded=self.degraded
        )


class AsgiExchange:
    """The ``receive`` and ``send`` callables of one request.

    As behind a server, ``receive`` reports a disconnect, and sending to a disconnected client is no error.

    Args:
        listener: receives the events.
        index: index of the request.
        body: body of the request.
        head: whether it is a HEAD request: its response has a length and no body.
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_disconnected",
        "_listener",
        "_over",
        "_request_delivered",
        "index",
        "response",
    )

    def __init__(self, listener: ExchangeListener, index: int, body: bytes, *, head: bool = False) -> None:
        self._listener = listener
        self._body = body
        self._request_delivered = False
        self._over = False
        self._bodiless = head
        self._disconnected: asyncio.Future[None] | None = None
        self.index: int = index
        self.response: AsgiResponse = AsgiResponse()

    async def receive(self) -> Message:
        """ASGI: return the whole request at first, then wait until the exchange is over."""
        if not self._request_delivered:
            self._request_delivered = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if not self._over:
            if self._disconnected is None:
                self._disconnected = asyncio.get_running_loop().create_future()
            # Cancelling one receive() must not cancel the future that another one waits for.
            await asyncio.shield(self._disconnected)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI: accept a part of the response.

        Raises:
            RuntimeError: the part is out of order, its status is not valid, or its body is longer or shorter
                than its content-length: as a server does, which then closes the connection.
        """
        kind = message["type"]
        if self._over:
            return
        response = self.response
        if kind == "http.response.start" and not response.status:
            response.start(message, bodiless=self._bodiless)
        elif kind == "http.response.body" and response.status:
            more, body = message.get("more_body", False), message.get("body", b"")
            self._check_length(len(body), more=more)
            self._record_body(body)
            if not more:
                self.end(response.classify())
        else:
            raise RuntimeError(f"{kind} cannot come {'after the start' if response.status else 'first'}")

    def end(self, result: RequestResult) -> None:
        """End the exchange for the client; only the first call counts."""
        if self._over:
            return
        self._over = True
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)
        self._listener.ended(self, result)

    def disconnect(self) -> None:
        """Disconnect an impatient client: the connection ends before the response."""
        self.end(RequestResult.CONNECTION)

    def app_returned(self) -> None:
        """The application returned or raised: record the result that a server would produce."""
        if self.response.status:
            self.end(RequestResult.CONNECTION)
        elif not self._over:
            self.response.status = 500
            self.end(RequestResult.SERVER_ERROR)

    def _check_length(self, length: int, *, more: bool) -> None:
        """Compare the body with the stated length."""
        response = self.response
        if response.bytes_left is None:
            return
        response.bytes_left -= length
        if response.bytes_left < 0 or (response.bytes_left and not more):
            self.end(RequestResult.CONNECTION)
            relation = "longer" if response.bytes_left < 0 else "shorter"
            raise RuntimeError(f"the body of the answer is {relation} than its content-length")

    def _record_body(self, body: bytes) -> None:
        if not body:
            return
        response = self.response
        if response.body_start is None:
            response.body_start = b""
            self._listener.on_message(self.index)
        if response.status >= 400 and len(response.body_start) < REJECTION_BYTES:
            response.body_start += body
