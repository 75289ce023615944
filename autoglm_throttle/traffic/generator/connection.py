"""One HTTP/1.1 connection of the generator: an asyncio protocol with one reused parser.

httptools completes a 100 Continue like an answer, and never completes an answer to HEAD that states a length
or one whose body ends with the connection. Those three are handled here.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol, cast

from autoglm_throttle.settings.installing import how_to_install
from autoglm_throttle.traffic import refusal
from autoglm_throttle.traffic.ending import Ending, judge
from autoglm_throttle.traffic.errors import TrafficError

BODY_BYTES = 64 << 20
"""A longer answer is malformed: no service under test means to send that."""

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))
_USUAL = frozenset((b"date", b"server", b"content-type"))
"""Nearly every answer has these, and nothing follows from them."""

IDLE = -1
"""The index of no request."""


class Parser(Protocol):
    """What is used of ``httptools.HttpResponseParser``."""

    def feed_data(self, data: bytes) -> None:
        """Parse, calling back."""

    def get_status_code(self) -> int:
        """Status of the answer that is being parsed."""

    def should_keep_alive(self) -> bool:
        """Whether the connection may be used again."""


class ParserLibrary:
    """httptools, an optional package.

    Raises:
        TrafficError: it is not installed.
    """

    def __init__(self) -> None:
        try:
            import httptools
        except ImportError:
            raise TrafficError(f"this needs httptools: {how_to_install('traffic')}") from None
        self._make = httptools.HttpResponseParser
        self.errors: tuple[type[Exception], ...] = (
            httptools.HttpParserError,
            httptools.HttpParserUpgrade,
        )

    def parser(self, callbacks: object) -> Parser:
        """A new parser that calls back."""
        return cast("Parser", self._make(callbacks))


class Owner(Protocol):
    """Whom a connection tells what happens to it."""

    def opened(self, connection: Connection) -> None:
        """It can take its first request."""

    def answered(self, connection: Connection, ending: Ending, now: float) -> None:
        """Its request ended with a whole answer or a malformed one; ``reusable`` says what now."""

    def closed(self, connection: Connection) -> None:
        """It is gone; ``index`` is the request it took along, ``unheard`` whether that may be sent again."""


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    __slots__ = (
        "_body",
        "_complete",
        "_degraded",
        "_framed",
        "_headers_done",
        "_heard",
        "_library",
        "_only_head",
        "_owner",
        "_parser",
        "_promised",
        "_size",
        "_spoilt",
        "_transport",
        "answers",
        "first_s",
        "index",
        "sent_s",
        "status",
    )

    def __init__(self, owner: Owner, library: ParserLibrary) -> None:
        self._owner = owner
        self._library = library
        self._parser = library.parser(self)
        self._spoilt = False
        self.answers: int = 0
        """Complete answers so far: above 0 the connection is a reused one."""
        self.index: int = IDLE
        """The request under way."""
        self.sent_s: float = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status: int = 0
        self.first_s: float | None = None
        """When the first byte of the body came."""
        self._only_head = False
        self._heard = self._complete = self._headers_done = False
        self._framed = self._degraded = False
        self._promised: bytes | None = None
        self._body = b""
        self._size = 0

    def send(self, index: int, data: bytes, now: float) -> None:
        """Write a request; the connection must be idle."""
        self._reset()
        self._only_head = data.startswith(b"HEAD ")
        self.index = index
        self.sent_s = now
        self._transport.write(data)

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return not (self._spoilt or self._transport.is_closing())

    @property
    def unheard(self) -> bool:
        """A reused connection ended before the first byte of the answer: the request may be sent again.

        Servers close idle connections at any time, so this is nobody's failure (RFC 9112, section 9.3.1).
        """
        return self.answers > 0 and not self._heard

    @property
    def promised_s(self) -> float | None:
        """The wait that Retry-After asks for, if it is a plain number of seconds."""
        return refusal.promised_s(self._promised)

    @property
    def reason(self) -> str:
        """The ``reason`` of a refusal's problem document, or nothing."""
        return refusal.reason(self._body)

    def abort(self) -> None:
        """Drop the connection and whatever it carries, without a word to the owner about the request."""
        self.index = IDLE
        self._transport.abort()

    def close(self) -> None:
        """Close an idle connection; a peer that does not read what is left of a request is not waited for."""
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: disconnected; an answer without a stated length is complete now."""
        if self.index != IDLE and exc is None and self._headers_done and not self._framed:
            self._spoilt = True
            self._finish(self._ending(), monotonic())
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes came."""
        if self.index == IDLE:
            self.abort()
            return
        now = monotonic()
        self._heard = True
        try:
            self._parser.feed_data(data)
        except self._library.errors:
            self._spoilt = True
            if not self._complete:
                self._finish(Ending.MALFORMED, now)
                return
        if self._size and self.first_s is None:
            self.first_s = now
        if self._complete:
            self._finish(self._ending(), now)

    def on_message_begin(self) -> None:
        """Httptools: an answer starts; one more than was asked for spoils the connection."""
        if self._complete:
            self._spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Httptools: a field; one that follows the body (a trailer) says nothing about the answer."""
        if name in _USUAL or self._complete or self._headers_done:
            return
        field = name.lower()
        if field in _FRAMING:
            self._framed = True
        elif field == b"retry-after":
            self._promised = value
        elif field == b"x-degraded":
            self._degraded = True

    def on_headers_complete(self) -> None:
        """Httptools: all fields of the head are read."""
        if self._complete:
            return
        self.status = self._parser.get_status_code()
        self._headers_done = self.status >= 200
        if not self._headers_done:
            self._framed, self._degraded, self._promised = False, False, None
        if self._only_head and self._headers_done:
            self._parser, spent = self._library.parser(self), self._parser
            self._spoilt |= not spent.should_keep_alive()
            self._complete = True

    def on_body(self, body: bytes) -> None:
        """Httptools: a piece of the body."""
        self._size += len(body)
        if self._size > BODY_BYTES:
            raise ValueError("the answer is too long")
        if self.status >= 400 and len(self._body) < refusal.REFUSAL_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        """Httptools: the answer is whole, unless it was an interim one."""
        if self.status < 200 or self._complete:
            return
        self._spoilt |= not self._parser.should_keep_alive()
        self._complete = True

    def _ending(self) -> Ending:
        return judge(self.status, retry_after=self._promised is not None, degraded=self._degraded)

    def _finish(self, ending: Ending, now: float) -> None:
        self.answers += 1
        self._owner.answered(self, ending, now)
