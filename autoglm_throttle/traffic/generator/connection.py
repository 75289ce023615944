"""One HTTP/1.1 connection of the generator: an asyncio protocol with one reused parser.

httptools completes a 100 Continue, but no response to HEAD with a length, nor one that ends by closing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from types import ModuleType
from typing import Protocol, cast

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_log import REJECTION_BYTES, RequestResult, classify_response

BODY_BYTES = 64 << 20  # A longer response is malformed: no service under test sends that intentionally

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
# Nearly every response has these fields, and no one is evaluated.
_COMMON_FIELDS = frozenset((b"date", b"server", b"content-type"))

IDLE = -1  # Index that means no request


def load_httptools() -> ModuleType:
    """Import httptools; raise TrafficError if it is not installed."""
    try:
        import httptools
    except ImportError:
        raise TrafficError(f"this needs httptools: {how_to_install('traffic')}") from None
    return httptools


class ConnectionListener(Protocol):
    """Receives the events of a connection; the sender does, which this module cannot import."""

    def opened(self, connection: Connection) -> None:
        """Handle a connection that can take its first request."""

    def answered(self, connection: Connection, result: RequestResult, now: float) -> None:
        """Handle a complete or malformed response."""

    def closed(self, connection: Connection) -> None:
        """Handle the loss of a connection: ``index`` is its request."""


@dataclass(slots=True)
class Response:
    """The part of a response that has arrived."""

    is_to_head: bool  # Whether the request was a HEAD
    status: int = 0  # Of the newest head; below 200 that of an interim response
    first_s: float | None = None  # Arrival time of the first byte of the body
    has_begun: bool = False  # Whether any byte has arrived
    is_complete: bool = False
    is_framed: bool = False  # Whether its fields state where it ends
    degraded: bool = False
    retry_after: bytes | None = None
    body: bytes = b""  # The start of the body of a rejection
    size: int = 0  # Bytes of the body so far


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self, listener: ConnectionListener, httptools: ModuleType) -> None:
        self._listener = listener
        self._httptools = httptools
        self._parser = httptools.HttpResponseParser(self)
        self._unusable = False
        self.answers: int = 0  # Complete responses so far: above 0 the connection is a reused one
        self.index: int = IDLE  # The request in flight
        self.sent_s: float = 0.0
        self.response: Response = Response(is_to_head=False)  # The response to the newest request

    def send(self, index: int, data: bytes, now: float) -> None:
        """Write a request; the connection must be idle."""
        self.response = Response(data.startswith(b"HEAD "))
        self.index = index
        self.sent_s = now
        self._transport.write(data)

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return not (self._unusable or self._transport.is_closing())

    @property
    def unanswered(self) -> bool:
        """Whether a reused connection ended before the first byte of a response: the request may be resent.

        Servers close idle connections at any time, so this is not a failure (RFC 9112, section 9.3.1).
        """
        return self.answers > 0 and not self.response.has_begun

    def abort(self) -> None:
        """Abort the connection and its request; the listener gets no result for the request."""
        self.index = IDLE
        self._transport.abort()

    def close(self) -> None:
        """Close an idle connection; abort it if a request is still being written."""
        # close() would wait for a peer that does not read the rest of the request.
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: disconnected; a response without a stated length is complete now."""
        response = self.response
        if self.index != IDLE and exc is None and response.status >= 200 and not response.is_framed:
            self._unusable = True
            self._complete(monotonic())
        self._listener.closed(self)

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes arrived."""
        if self.index == IDLE:
            self.abort()
            return
        now, response = monotonic(), self.response
        response.has_begun = True
        try:
            self._parser.feed_data(data)
        except (self._httptools.HttpParserError, self._httptools.HttpParserUpgrade):
            self._unusable = True
            if not response.is_complete:
                self._listener.answered(self, RequestResult.MALFORMED, now)
                return
        if response.size and response.first_s is None:
            response.first_s = now
        if response.is_complete:
            self._complete(now)

    def on_message_begin(self) -> None:
        """Httptools: a response starts; a second one to the same request makes the connection unusable."""
        if self.response.is_complete:
            self._unusable = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Httptools: a field; a trailer field is ignored."""
        response = self.response
        if name in _COMMON_FIELDS or response.is_complete or response.status >= 200:
            return
        field = name.lower()
        if field in _FRAMING:
            response.is_framed = True
        elif field == b"retry-after":
            response.retry_after = value
        elif field == b"x-degraded":
            response.degraded = True

    def on_headers_complete(self) -> None:
        """Httptools: all fields of the head are read."""
        response = self.response
        if response.is_complete:
            return
        response.status = self._parser.get_status_code()
        if response.status < 200:
            # The fields belonged to an interim response (1xx).
            response.is_framed, response.degraded, response.retry_after = False, False, None
        elif response.is_to_head:
            # httptools would wait for a body that a response to HEAD never has, so the parser is replaced.
            self._parser, spent = self._httptools.HttpResponseParser(self), self._parser
            self._unusable |= not spent.should_keep_alive()
            response.is_complete = True

    def on_body(self, body: bytes) -> None:
        """Httptools: a part of the body."""
        response = self.response
        response.size += len(body)
        if response.size > BODY_BYTES:
            # An exception in a callback reaches feed_data() as an error of the parser.
            raise ValueError("the answer is too long")
        if response.status >= 400 and len(response.body) < REJECTION_BYTES:
            response.body += body

    def on_message_complete(self) -> None:
        """Httptools: the response is complete, unless it was an interim one."""
        response = self.response
        if response.status < 200 or response.is_complete:
            return
        self._unusable |= not self._parser.should_keep_alive()
        response.is_complete = True

    def _complete(self, now: float) -> None:
        response = self.response
        self.answers += 1
        result = classify_response(response.status, response.retry_after, degraded=response.degraded)
        self._listener.answered(self, result, now)
