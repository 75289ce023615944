"""Buffers client messages of a queued request, and detects the client's disconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

KEPT_BYTES = 65_536
"""Bytes of a body buffered while the request waits; beyond it nothing more is read until a slot is free."""

PART_BYTES = 256
"""Bytes that each part counts beside its body, about the size of its message. Without it a client could use
a hundred times the memory by sending its body byte by byte, and any amount by sending empty parts.
"""

_DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Inbox:
    """Replaces ``receive`` while a request waits, and afterwards.

    A body part must not be lost if the slot becomes free during its reception. Not every server
    survives a cancelled ``receive``: Granian has been observed to lose a part. Under asyncio each
    part is therefore received in its own task, which runs until the part is consumed.

    Args:
        receive: the server's.
    """

    __slots__ = ("_kept", "_pending", "_receive")

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self._kept: deque[Any] = deque()
        self._pending: asyncio.Future[Any] | None = None

    async def left(self) -> None:
        """Read until the client disconnects. Never returns if that cannot be detected; cancel it."""
        held, complete = 0, False
        while held < KEPT_BYTES:
            message = await (self._receive() if complete else self._part())
            self._kept.append(message)
            if message["type"] in _DISCONNECTS:
                return
            if complete:  # only a disconnect may follow a whole body: a server that sends more may never stop
                break
            held += PART_BYTES + len(message.get("body") or b"")
            complete = message["type"] == "http.request" and not message.get("more_body")
        await anyio.sleep_forever()

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        """Return the buffered messages in order, then new ones."""
        if self._kept:
            return self._kept.popleft()
        return await (self._receive() if self._pending is None else self._part())

    def close(self) -> None:
        """Cancel a reception that is still pending."""
        if self._pending is not None:
            self._pending.add_done_callback(_forget)
            self._pending.cancel()

    async def _part(self) -> Any:  # noqa: ANN401 - an ASGI message
        """Receive one message; if the caller is cancelled, the next caller gets it."""
        if self._pending is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # trio: its servers survive a cancelled receive
                return await self._receive()
            self._pending = asyncio.ensure_future(self._receive())
        pending = self._pending
        if not pending.done():
            await _ended(pending)
        if self._pending is not pending:  # another caller consumed the part
            return await self.receive()
        self._pending = None
        return pending.result()


async def _ended(part: asyncio.Future[Any]) -> None:
    """Wait for a reception without cancelling it if the waiter is cancelled.

    ``shield`` would log an error that is raised again further down, and ``wait`` takes three times as long.
    """
    ended = part.get_loop().create_future()

    def end(_part: asyncio.Future[Any]) -> None:
        if not ended.done():
            ended.set_result(None)

    part.add_done_callback(end)
    try:
        await ended
    finally:
        part.remove_done_callback(end)


def _forget(part: asyncio.Future[Any]) -> None:
    """Retrieve the result of a reception, or asyncio would log that its exception was never retrieved."""
    if not part.cancelled():
        part.exception()
