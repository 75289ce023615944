"""Servers on loopback in the event loop of a test: scripted upstreams, and the gateway under uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
import uvicorn

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.gateway import Gateway

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Exchange:
    """One request that an upstream has received, and the connection for its response."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def line(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The fields by lower-case name; values of one name are joined."""
        found: dict[bytes, bytes] = {}
        for line in self.head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name:
                key = name.lower()
                found[key] = found[key] + b", " + value.strip() if key in found else value.strip()
        return found

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def peer_closed(self) -> None:
        """Return when the other side has closed the connection."""
        try:
            while await self.reader.read(1):
                pass
        except ConnectionError:
            pass


Answer = Callable[[Exchange], Awaitable[None]]


async def answer_ok(exchange: Exchange) -> None:
    await exchange.send(OK)


def answer_with(data: bytes) -> Answer:
    """Answer each request with these bytes."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(data)

    return answer


@dataclass
class RawUpstream:
    """Server that records each request, once it is whole, and answers it by a function."""

    answer: Answer = answer_ok
    exchanges: list[Exchange] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)  # The head of a request has arrived
    arrived: asyncio.Event = field(default_factory=asyncio.Event)  # A request has arrived
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # A connection has ended
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for exchange in self.exchanges:
            with suppress(ConnectionError):
                await exchange.writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                exchange = Exchange(await reader.readuntil(b"\r\n\r\n"), b"", reader, writer)
                self.began.set()
                exchange.body = await _read_body(exchange)
                self.exchanges.append(exchange)
                self.arrived.set()
                await self.answer(exchange)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # asyncio would log the cancellation as an error
        finally:
            self._tasks.discard(task)
            self.ended.set()
            writer.close()


async def _read_body(exchange: Exchange) -> bytes:
    reader = exchange.reader
    if exchange.fields.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    return await reader.readexactly(int(exchange.fields.get(b"content-length", b"0")))


class _ReadyServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def under_uvicorn(app: Any, **config: Any) -> AsyncIterator[int]:
    """Serve an app; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        chosen = {"log_level": "critical", "timeout_graceful_shutdown": 1, "proxy_headers": False, **config}
        server = _ReadyServer(uvicorn.Config(app, **{"lifespan": "on", "ws": "none", **chosen}))
        serving = asyncio.create_task(server.serve([listener]))
        await server.ready.wait()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def throttle(**settings: Any) -> Throttle:
    """A throttle without GPUs that rejects nothing in a test of the proxy."""
    return Throttle(Settings(**{"gpu": "none", "policy": "fixed", **settings}))


@dataclass
class Front:
    """A gateway that is being served, and a client of it."""

    gateway: Gateway
    port: int
    client: httpx.AsyncClient
    opened: list[asyncio.StreamWriter] = field(default_factory=list)

    async def open(self, head: bytes) -> Exchange:
        """Send the beginning of a request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        exchange = Exchange(head, b"", reader, writer)
        await exchange.send(head)
        return exchange

    async def aclose(self) -> None:
        """Close the connections of `open`."""
        for writer in self.opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def front(*urls: str, config: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Front]:
    """Serve a gateway with these upstreams."""
    gateway = Gateway(urls, throttle=throttle(**settings))
    async with under_uvicorn(gateway, **(config or {})) as port:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60.0) as client:
            served = Front(gateway, port, client)
            yield served
            await served.aclose()
