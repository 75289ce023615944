"""A server that sends exactly the scripted bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable, Iterator

Serve = Callable[[Reader, Writer], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class ScriptedServer:
    """Runs ``serve`` for each connection, on a port of its own."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self.connections = 0
        self.port = 0
        self._served = set[asyncio.Task[None]]()

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def _begin(self, reader: Reader, writer: Writer) -> None:
        """Serve one in a task of its own: asyncio itself complains when one ends before it has begun."""
        self.connections += 1
        task = asyncio.ensure_future(self.handle(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        task.add_done_callback(lambda _: writer.close())

    async def handle(self, reader: Reader, writer: Writer) -> None:
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def request(reader: Reader) -> bytes:
    """Read one whole request; its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    return head


def always(*pieces: bytes) -> Serve:
    """Answer every request with these bytes, written piece by piece."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)

    return serve


def once(answer: bytes, *, by_reset: bool = False) -> Serve:
    """Answer one request with these bytes and close, optionally by a reset."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(answer)
        await writer.drain()
        if by_reset:
            reset(writer)

    return serve


def reset(writer: Writer) -> None:
    """End a connection by a reset instead of an orderly close."""
    linger_not = struct.pack("ii", 1, 0)
    with contextlib.suppress(OSError):  # the other side was faster
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
    writer.transport.abort()


@contextlib.contextmanager
def beside(serve: Serve) -> Iterator[ScriptedServer]:
    """Run a server on a loop of its own in another thread."""
    started, over = threading.Event(), threading.Event()
    server = ScriptedServer(serve)

    async def stay() -> None:
        async with server:
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(stay()))
    thread.start()
    try:
        started.wait()
        yield server
    finally:
        over.set()
        thread.join()
