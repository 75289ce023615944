"""What a client sends while its request stands in line: kept for the app, and watched for its leaving."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

KEPT_BYTES = 65_536
"""Of a body that arrives meanwhile; beyond it nothing more is read until the turn comes."""

PART_BYTES = 256
"""What a part counts beside its body, about what its message takes: else a client could have a hundred times
the memory by sending its body byte by byte, and any amount of it by sending empty parts."""

_DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Inbox:
    """Stands in for ``receive`` while a request waits, and after it.

    A body's part must not get lost when the turn comes while it is being received, and not every server
    survives the cancelling of its ``receive``: Granian has been seen to lose a part. So under asyncio each
    part is received in a task of its own, which goes on until somebody wants the part.

    Args:
        receive: the server's.
    """

    __slots__ = ("_kept", "_pending", "_receive")

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self._kept: deque[Any] = deque()
        self._pending: asyncio.Future[Any] | None = None

    async def left(self) -> None:
        """Read until the client has gone. Never ends where that cannot be seen; cancel it."""
        held, complete = 0, False
        while held < KEPT_BYTES:
            message = await (self._receive() if complete else self._part())
            self._kept.append(message)
            if message["type"] in _DISCONNECTS:
                return
            if complete:  # only a disconnect may follow a whole body: a server that says more may never stop
                break
            held += PART_BYTES + len(message.get("body") or b"")
            complete = message["type"] == "http.request" and not message.get("more_body")
        await anyio.sleep_forever()

    async def receive(self) -> Any:  # noqa: ANN401 - an ASGI message
        """What was kept, in order, and then what comes."""
        if self._kept:
            return self._kept.popleft()
        return await (self._receive() if self._pending is None else self._part())

    def close(self) -> None:
        """Give up a part that nobody has wanted."""
        if self._pending is not None:
            self._pending.add_done_callback(_forget)
            self._pending.cancel()

    async def _part(self) -> Any:  # noqa: ANN401 - an ASGI message
        """One message, which a cancelled caller leaves to the next one."""
        if self._pending is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # trio: the servers there survive it
                return await self._receive()
            self._pending = asyncio.ensure_future(self._receive())
        pending = self._pending
        if not pending.done():
            await _ended(pending)
        if self._pending is not pending:  # two wanted it, and the other one was faster
            return await self.receive()
        self._pending = None
        return pending.result()


async def _ended(part: asyncio.Future[Any]) -> None:
    """Wait for a part without touching it when cancelled.

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
    """Look at what came of a part, or asyncio would complain that nobody did."""
    if not part.cancelled():
        part.exception()
