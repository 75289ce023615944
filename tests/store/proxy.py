"""A proxy between a client and a server: slow, broken, refusing, or TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.store.server import free_port

T = TypeVar("T")
TLS = Path(__file__).parent / "tls"
AUTHORITY = TLS / "authority.pem"
"""Whom a client has to trust. Its key no longer exists; valid until 2124."""


class SlowProxy:
    """A TCP proxy on a thread of its own, so that a blocked test blocks nothing here; a context manager.

    Args:
        target: port on 127.0.0.1 where the server is.
        tls: speak TLS to the client, with a certificate for localhost and 127.0.0.1 by `AUTHORITY`.

    Attributes:
        delay_s: what every reply is late by, from now on; replies are late together, not one after the other.
        opened: connections so far.
    """

    def __init__(self, target: int, *, delay_s: float = 0.0, tls: bool = False) -> None:
        self.target = target
        self.delay_s = delay_s
        self.opened = 0
        self.port = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._context is not None:
            self._context.load_cert_chain(TLS / "server.pem")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._pairs: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = free_port()
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.reject()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """``redis://`` or ``rediss://`` address; a TLS one names `AUTHORITY`."""
        if self._context is not None:
            return f"rediss://localhost:{self.port}/0?ssl_ca_certs={AUTHORITY}"
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Break all connections at once; new ones are welcome."""
        self._do(self._cut())

    def reject(self) -> None:
        """Break all connections and reject new ones."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Take connections, on the same port as ever."""
        self._do(self._accept())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _accept(self) -> None:
        """Not by a server of asyncio: that one loses what it took in the pass in which it is closed."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._take, self._listener)

    def _take(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            taken, _ = listener.accept()
            taken.setblocking(False)
            self.opened += 1
            pair = self._loop.create_task(self._pair(taken))
            self._pairs.add(pair)
            pair.add_done_callback(self._pairs.discard)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._cut()

    async def _cut(self) -> None:
        pairs = list(self._pairs)
        await asyncio.sleep(0)  # one that has not begun would be cancelled with its connection open
        for pair in pairs:
            pair.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)

    async def _pair(self, taken: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, taken, ssl=self._context
            )
            try:
                await self._join(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))
            finally:
                transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        ways = [
            asyncio.ensure_future(self._ask(reader, server_writer)),
            asyncio.ensure_future(self._hear(server_reader, late)),
            asyncio.ensure_future(self._answer(late, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()

    async def _hear(self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        while chunk := await reader.read(65_536):
            late.put_nowait((self._loop.time() + self.delay_s, chunk))

    async def _answer(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await late.get()
            await asyncio.sleep(due - self._loop.time())
            writer.write(chunk)
            await writer.drain()
