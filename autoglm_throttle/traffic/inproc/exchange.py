"""One in-process HTTP exchange between the ASGI application and a client."""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import Message

from autoglm_throttle.traffic.ending import Ending, judge
from autoglm_throttle.traffic.refusal import REFUSAL_BYTES

BODILESS = (204, 304)
"""Statuses without a body, regardless of the stated length."""


class Owner(Protocol):
    """Receives the events of an exchange."""

    def spoke(self, index: int) -> None:
        """The first byte of the response body arrived."""

    def ended(self, exchange: Exchange, ending: Ending) -> None:
        """The client has its response, or disconnected without one."""


class Exchange:
    """The ``receive`` and ``send`` callables of one request.

    As behind a server, ``receive`` reports a disconnect, and sending to a disconnected client is no error.

    Args:
        listener: receives the events.
        index: index of the request.
        body: body of the request.
        head: whether it is a HEAD request: its response has a length and no body.
    """

    __slots__ = (
        "_asked",
        "_bodiless",
        "_body",
        "_gone",
        "_over",
        "_owed",
        "_owner",
        "degraded",
        "index",
        "refusal",
        "retry_after",
        "status",
    )

    def __init__(self, owner: Owner, index: int, body: bytes, *, head: bool = False) -> None:
        self._owner = owner
        self._body = body
        self._asked = False
        self._over = False
        self._bodiless = head
        self._owed: int | None = None
        self._gone: asyncio.Future[None] | None = None
        self.index: int = index
        self.status: int = 0
        """0 until the response starts."""
        self.retry_after: bytes | None = None
        self.degraded: bool = False
        self.refusal: bytes | None = None
        """Start of the response body, for parsing the reason of a rejection; None before its first byte."""

    async def receive(self) -> Message:
        """ASGI: return the whole request at first, then wait until the exchange is over."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if not self._over:
            if self._gone is None:
                self._gone = asyncio.get_running_loop().create_future()
            # Cancelling one receive() must not cancel the future that another one waits for.
            await asyncio.shield(self._gone)
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
        if kind == "http.response.start" and not self.status:
            self._start(message)
        elif kind == "http.response.body" and self.status:
            more = message.get("more_body", False)
            self._count(len(message.get("body", b"")), more=more)
            self._part(message.get("body", b""))
            if not more:
                self.end(judge(self.status, retry_after=self.retry_after is not None, degraded=self.degraded))
        else:
            raise RuntimeError(f"{kind} cannot come {'after the start' if self.status else 'first'}")

    def end(self, ending: Ending) -> None:
        """End the exchange for the client; only the first call counts."""
        if self._over:
            return
        self._over = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._owner.ended(self, ending)

    def leave(self) -> None:
        """Disconnect an impatient client: the connection ends before the response."""
        self.end(Ending.CONNECTION)

    def returned(self) -> None:
        """The application returned or raised: record the result that a server would produce."""
        if self.status:
            self.end(Ending.CONNECTION)
        elif not self._over:
            self.status = 500
            self.end(Ending.SERVER_ERROR)

    def _start(self, message: Message) -> None:
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
                self._owed = int(value)
        if self._bodiless or self.status in BODILESS:
            self._owed = None

    def _count(self, length: int, *, more: bool) -> None:
        """Compare the body with the stated length."""
        if self._owed is None:
            return
        self._owed -= length
        if self._owed < 0 or (self._owed and not more):
            self.end(Ending.CONNECTION)
            said = "longer" if self._owed < 0 else "shorter"
            raise RuntimeError(f"the body of the answer is {said} than its content-length")

    def _part(self, body: bytes) -> None:
        if not body:
            return
        if self.refusal is None:
            self.refusal = b""
            self._owner.spoke(self.index)
        if self.status >= 400 and len(self.refusal) < REFUSAL_BYTES:
            self.refusal += body
