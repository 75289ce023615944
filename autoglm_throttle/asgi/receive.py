"""Buffers client messages of a queued request, and detects the client's disconnect."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from types import CoroutineType
from typing import Any

import anyio

from autoglm_throttle.asgi.scope import Message, Receive

# Bytes of a body buffered while the request waits; beyond it nothing more is read until a slot is free.
BUFFER_BYTES = 65_536

# Bytes that each part counts beside its body, about the size of its message. Without it a client could use a
# hundred times the memory by sending its body byte by byte, and any amount by sending empty parts.
PART_OVERHEAD_BYTES = 256

DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class BufferedReceive:
    """Replaces ``receive`` while a request waits, and afterwards.

    A body part must not be lost if the slot becomes free during its reception. Not every server
    survives a cancelled ``receive``: Granian has been observed to lose a part. Under asyncio each
    part is therefore received in its own task, which runs until the part is consumed.
    """

    __slots__ = ("_buffered", "_buffered_bytes", "_is_complete", "_pending", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._buffered: deque[Any] = deque()
        self._buffered_bytes = 0
        self._is_complete = False  # Whether only a disconnect may follow
        self._pending: asyncio.Future[Any] | None = None

    async def disconnected(self) -> None:
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
        self._buffered.append(message)
        self._buffered_bytes += PART_OVERHEAD_BYTES + len(message.get("body") or b"")
        is_disconnect = message["type"] in DISCONNECTS
        self._is_complete = is_disconnect or (
            message["type"] == "http.request" and not message.get("more_body")
        )
        return is_disconnect

    async def receive(self) -> Message:
        """Return the buffered messages in order, then new ones."""
        if self._buffered:
            return self._buffered.popleft()
        return await (self._receive() if self._pending is None else self._receive_part())

    def close(self) -> None:
        """Cancel a reception that is still pending."""
        if self._pending is not None:
            self._pending.add_done_callback(_consume_result)
            self._pending.cancel()

    async def _receive_part(self) -> Message:
        """Receive one message; if the caller is cancelled, the next caller gets it."""
        if self._pending is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # trio: its servers survive a cancelled receive
                return await self._receive()
            self._pending = asyncio.ensure_future(self._receive())
        pending = self._pending
        if not pending.done():
            await _wait_done(pending)
        if self._pending is not pending:  # another caller consumed the part
            return await self.receive()
        self._pending = None
        return pending.result()


async def _wait_done(part: asyncio.Future[Any]) -> None:
    """Wait for a reception without cancelling it if the waiter is cancelled.

    ``shield`` would log an error that is raised again further down, and ``wait`` takes three times as long.
    """
    done = part.get_loop().create_future()

    def end(_part: asyncio.Future[Any]) -> None:
        if not done.done():
            done.set_result(None)

    part.add_done_callback(end)
    try:
        await done
    finally:
        part.remove_done_callback(end)


def _consume_result(part: asyncio.Future[Any]) -> None:
    # asyncio would log that its exception was never retrieved.
    if not part.cancelled():
        part.exception()


class BegunCall:
    """A ``send`` or ``receive`` of a server that has begun. Await it unless it is done.

    Most calls end at once; then no time needs to be read and no timeout to be prepared. Under trio it begins
    only when it is awaited: a cancel scope around the rest must be entered before those of the call.
    """

    __slots__ = ("_coroutine", "_has_begun", "_pending", "is_done", "result")

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._coroutine: Coroutine[Any, Any, Any] = (
            awaitable if isinstance(awaitable, CoroutineType) else _wait(awaitable)
        )
        self._pending: Any = None
        self.is_done = False
        self.result: Any = None  # Result of a call that is done
        self._has_begun = not _is_in_trio()
        if not self._has_begun:
            return
        try:
            self._pending = self._coroutine.send(None)
        except StopIteration as ended:
            self.is_done, self.result = True, ended.value

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the rest: as ``yield from``, which cannot take over an iterator that has yielded already."""
        coroutine, pending = self._coroutine, self._pending
        if not self._has_begun:
            return (yield from coroutine.__await__())
        step: Callable[[], Any]
        while True:
            try:
                sent = yield pending
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation, too, belongs to the call
                step = partial(coroutine.throw, error)
            else:
                step = partial(coroutine.send, sent)
            try:
                pending = step()
            except StopIteration as ended:
                return ended.value

    def close(self) -> None:
        """Abandon the call."""
        self._coroutine.close()


async def _wait(awaitable: Awaitable[Message]) -> Message:
    return await awaitable


def _is_in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()
