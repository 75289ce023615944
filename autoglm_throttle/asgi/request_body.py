"""Receives the body of a request before it gets a slot, and the rest of it while the app works."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.receive import BUFFER_BYTES, DISCONNECTS, BegunCall, BufferedReceive
from autoglm_throttle.asgi.scope import Message, Receive
from autoglm_throttle.asgi.slot_watch import SlotWatch, TooSlowError, WatchedSlot

_DISCONNECT = {"type": "http.disconnect"}


class RequestBody(BufferedReceive):
    """The ``receive`` of a request with a body.

    The app gets no slot before the body is complete or `BUFFER_BYTES` of it are there. While it waits for
    the rest it has no slot either. A body below the least rate ends the request with a disconnect; that of a
    stream may take any time.
    """

    __slots__ = ("_on_timeout", "_watch", "_watched", "is_over", "timed_out")

    def __init__(self, receive: Receive, watch: SlotWatch, *, is_stream: bool = False) -> None:
        super().__init__(receive)
        self._watch = watch
        self._watched = WatchedSlot(watch, None)
        if is_stream:
            self._watched.timeout_s = math.inf
        self._on_timeout: Callable[[], Awaitable[None]] | None = None
        self.is_over = False  # Whether it waited beside too many others
        self.timed_out = False  # Whether the client has sent less than the least rate

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has left before admission."""
        return bool(self._buffered) and self._buffered[-1]["type"] in DISCONNECTS

    async def wait(self, first: BegunCall) -> None:
        """Receive until the body is complete, `BUFFER_BYTES` are there, or the client has left.

        Raises:
            TooSlowError: the client has sent less than the least rate, or it waited beside too many others.
        """
        call = first
        while True:
            self._keep(call.result if call.is_done else await self._blocked(call))
            if self._is_complete or self._buffered_bytes >= BUFFER_BYTES:
                return
            call = BegunCall(self._receive())

    async def _blocked(self, call: BegunCall) -> Message:
        """Wait for a part; beside too many other bodies only until the next scan: a complete body passes."""
        watch = self._watch
        self.is_over = watch.bodies >= watch.paused_max
        awaited = watch.awaited  # a child that is forked meanwhile counts only its own
        awaited.add(id(self))
        try:
            return await self._watched.blocked(call, at_once=self.is_over)
        finally:
            awaited.discard(id(self))

    def attach(self, permit: Permit, on_timeout: Callable[[], Awaitable[None]]) -> None:
        """Pause a permit while the app waits for the body; if that makes no progress, call ``on_timeout``."""
        self._watched.permit = permit
        self._on_timeout = on_timeout

    def detach(self) -> None:
        """Leave the pauses to the response, which has begun before the body is complete."""
        self._watched.permit = None

    async def receive(self) -> Message:
        """Return the buffered messages in order, then new ones; a disconnect after a timeout."""
        if self.timed_out:
            return _DISCONNECT
        if self._buffered or self._is_complete:
            return await super().receive()
        call = BegunCall(self._receive() if self._pending is None else self._receive_part())
        try:
            message = call.result if call.is_done else await self._watched.blocked(call)
        except TooSlowError:
            self.timed_out = True
            if self._on_timeout is not None:
                await self._on_timeout()
            return _DISCONNECT
        self._watched.transferred_bytes += len(message.get("body") or b"")
        self._is_complete = not message.get("more_body")
        return message

    def _keep(self, message: Message) -> bool:
        self._watched.transferred_bytes += len(message.get("body") or b"")
        return super()._keep(message)


def is_complete(message: Message) -> bool:
    """Whether a message is a whole body."""
    return message["type"] == "http.request" and not message.get("more_body")


def replay(body: Message, receive: Receive) -> Receive:
    """Return the ``receive`` of a request whose body came as one message."""

    def receive_again() -> Awaitable[Message]:
        nonlocal body
        if body is None:
            return receive()
        given, body = body, None  # its memory is free once the app has read it
        return _given(given)

    return receive_again


async def _given(message: Message) -> Message:
    return message
