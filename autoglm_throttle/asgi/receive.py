"""The ``receive`` of a request that waits: buffers its messages, and detects the client's disconnect."""

from __future__ import annotations

import asyncio
import math
from asyncio import _get_running_loop as running_loop  # a call of C
from collections.abc import Awaitable, Callable
from functools import partial
from types import CodeType
from typing import Any, Final

import anyio

from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.scope import Message, Receive
from autoglm_throttle.asgi.slot_watch import BegunCall, SlotWatch, TooSlowError, WatchedSlot, begin

# Bytes of a body buffered while the request waits; beyond it nothing more is read until a slot is free.
BUFFER_BYTES = 65_536

# Bytes that each part counts beside its body, about the size of its message. Without it a client could use a
# hundred times the memory by sending its body byte by byte, and any amount by sending empty parts.
PART_OVERHEAD_BYTES = 256

DISCONNECTS = ("http.disconnect", "websocket.disconnect")
_DISCONNECT = {"type": "http.disconnect"}

# Code of the functions that have given a message at once: the first one of a request without a body is then
# received without a task, which would cost more than all else.
_AT_ONCE: Final[set[CodeType]] = set()


class BufferedReceive:
    """Replaces ``receive`` while a request waits, and afterwards.

    A body part must not be lost if the slot becomes free during its reception. Not every server
    survives a cancelled ``receive``: Granian has been observed to lose a part. Under asyncio each part
    that does not come at once is therefore received in its own task, which runs until it is consumed.
    """

    __slots__ = ("_buffered", "_buffered_bytes", "_is_complete", "_pending", "_receive")

    _has_body = False  # Whether the first message may be late

    def __init__(self, receive: Receive, body: Message | None = None) -> None:
        self._receive = receive
        self._buffered: tuple[Message, ...] = (body,) if body else ()
        self._buffered_bytes = 0
        self._is_complete = body is not None  # Whether only a disconnect may follow
        self._pending: asyncio.Future[Any] | None = None

    async def __call__(self) -> None:
        """Read until the client disconnects. Never returns if that cannot be detected; cancel it."""
        # A server that sends more after a whole body may never stop.
        while not self._is_complete and self._buffered_bytes < BUFFER_BYTES:
            if self._keep(await self._receive_part()):
                return
        if self._is_complete and self._keep(await self._receive()):
            return
        await anyio.sleep_forever()

    def _keep(self, message: Message) -> bool:
        """Buffer a message; True if it is a disconnect."""
        self._buffered += (message,)
        self._buffered_bytes += PART_OVERHEAD_BYTES + len(message.get("body") or b"")
        is_disconnect = message["type"] in DISCONNECTS
        self._is_complete = is_disconnect or is_complete(message)
        return is_disconnect

    async def receive(self) -> Message:
        """Return the buffered messages in order, then new ones."""
        if self._buffered:
            message, self._buffered = self._buffered[0], self._buffered[1:]
            return message
        return await (self._receive() if self._pending is None else self._receive_part())

    def close(self) -> None:
        """Cancel a reception that is still pending."""
        if self._pending is not None:
            self._pending.add_done_callback(_consume_result)
            self._pending.cancel()

    async def _receive_part(self) -> Message:
        """Receive one message; if the caller is cancelled, the next caller gets it."""
        pending = self._pending
        if pending is None:
            if running_loop() is None:  # trio: its servers survive a cancelled receive
                return await self._receive()
            code = getattr(self._receive, "__code__", None)
            if code in _AT_ONCE and not (self._buffered or self._has_body):
                call = begin(self._receive())
                if not isinstance(call, BegunCall):
                    return call
                self._pending = pending = asyncio.ensure_future(call)
            else:
                self._pending = pending = asyncio.ensure_future(self._receive())
                await asyncio.sleep(0)
                if pending.done() and code is not None:
                    _AT_ONCE.add(code)
        if not pending.done():
            # It must not be cancelled with its reader. `shield` would log an error that is raised again
            # further down, and `wait` takes three times as long.
            done = pending.get_loop().create_future()
            end = partial(_end, done)
            pending.add_done_callback(end)
            try:
                await done
            finally:
                pending.remove_done_callback(end)
        if self._pending is not pending:  # another caller consumed the part
            return await self.receive()
        self._pending = None
        return pending.result()


def _end(done: asyncio.Future[None], _part: asyncio.Future[Any]) -> None:
    if not done.done():
        done.set_result(None)


def _consume_result(part: asyncio.Future[Any]) -> None:
    # asyncio would log that its exception was never retrieved.
    if not part.cancelled():
        part.exception()


class RequestBody(BufferedReceive):
    """The ``receive`` of a request with a body.

    The app gets no slot before the body is complete or `BUFFER_BYTES` of it are there. While it waits for
    the rest it has no slot either. A body below the least rate ends the request with a disconnect; that of a
    stream may take any time.
    """

    __slots__ = ("_on_timeout", "_watch", "_watched", "is_over", "most_bytes", "timed_out")

    _has_body = True

    def __init__(self, receive: Receive, watch: SlotWatch, *, is_stream: bool = False) -> None:
        super().__init__(receive)
        self._watch = watch
        self._watched = WatchedSlot(watch, None)
        if is_stream:
            self._watched.timeout_s = math.inf
        self._on_timeout: Callable[[], Awaitable[None]] | None = None
        self.most_bytes: int = BUFFER_BYTES  # Of the body, before the app gets a slot
        self.is_over: bool = False  # Whether it waited beside too many others
        self.timed_out: bool = False  # Whether the client has sent less than the least rate

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has left before admission."""
        return bool(self._buffered) and self._buffered[-1]["type"] in DISCONNECTS

    @property
    def received_bytes(self) -> int:
        """Bytes of the body that have come."""
        return self._watched.transferred_bytes

    @property
    def content(self) -> bytes | None:
        """The whole body before admission; None: it is not complete."""
        if not self._is_complete or self.is_disconnected:
            return None
        return b"".join([message.get("body") or b"" for message in self._buffered])

    async def wait(self, first: Message | BegunCall) -> None:
        """Receive until the body is complete, ``most_bytes`` are there, or the client has left.

        Raises:
            TooSlowError: the client has sent less than the least rate, or it waited beside too many others.
        """
        call = first
        while True:
            self._keep(await self._blocked(call) if isinstance(call, BegunCall) else call)
            if self._is_complete or self._buffered_bytes >= self.most_bytes:
                return
            call = begin(self._receive())

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
        message = begin(self._receive() if self._pending is None else self._receive_part())
        try:
            if isinstance(message, BegunCall):
                message = await self._watched.blocked(message)
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
