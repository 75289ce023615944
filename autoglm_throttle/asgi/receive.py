"""Buffers client messages of a queued request, and detects the client's disconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

BUFFER_BYTES = 65_536
"""Bytes of a body buffered while the request waits; beyond it nothing more is read until a slot is free."""

PART_OVERHEAD_BYTES = 256
"""Bytes that each part counts beside its body, about the size of its message. Without it a client could use
a hundred times the memory by sending its body byte by byte, and any amount by sending empty parts.
"""

DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class BufferedReceive:
    """Replaces ``receive`` while a request waits, and afterwards.

    A body part must not be lost if the slot becomes free during its reception. Not every server
    survives a cancelled ``receive``: Granian has been observed to lose a part. Under asyncio each
    part is therefore received in its own task, which runs until the part is consumed.

    Args:
        receive: the server's.
    """

    __slots__ = ("_buffered", "_buffered_bytes", "_is_complete", "_pending", "_receive")

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self._buffered: deque[Any] = deque()
        self._buffered_bytes = 0
        self._is_complete = False
        """Whether only a disconnect may follow."""
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

    def _keep(self, message: Any) -> bool:  # noqa: ANN401 - an ASGI message
        """Buffer a message; True if it is a disconnect."""
        self._buffered.append(message)
        self._buffered_bytes += PART_OVERHEAD_BYTES + len(message.get("body") or b"")
        is_disconnect = message["type"] in DISCONNECTS
        self._is_complete = is_disconnect or (
            message["type"] == "http.request" and not message.get("more_body")
        )
        return is_disconnect

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        """Return the buffered messages in order, then new ones."""
        if self._buffered:
            return self._buffered.popleft()
        return await (self._receive() if self._pending is None else self._receive_part())

    def close(self) -> None:
        """Cancel a reception that is still pending."""
        if self._pending is not None:
            self._pending.add_done_callback(_consume_result)
            self._pending.cancel()

    async def _receive_part(self) -> Any:  # noqa: ANN401 - an ASGI message
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
    """Retrieve the result of a reception, or asyncio would log that its exception was never retrieved."""
    if not part.cancelled():
        part.exception()
