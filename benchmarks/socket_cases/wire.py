"""Raw HTTP/1.1 clients: each is a user with an address of its own on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

ANSWER_S = 5.0
"""Seconds until a request counts as unanswered."""

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """One answer.

    Args:
        at_s: seconds from the start of the case to the sending of the request.
        status: HTTP status; 0: none came.
        retry_after_s: as the answer says; 0: it says nothing.
    """

    at_s: float
    status: int
    retry_after_s: float = 0.0


class Client:
    """A connection from one address; the address is the identity of the user at default settings.

    Args:
        port: port of the server.
        address: source address, such as ``127.0.2.7``.
        window: bytes that the kernel may receive unread; 0: its default.
    """

    def __init__(self, port: int, address: str, window: int = 0) -> None:
        self._port = port
        self._address = address
        self._window = window
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, *fields: str, body: bytes = b"") -> None:
        """Connect and send a request."""
        limit = self._window or 2**16
        self._reader, self._writer = await asyncio.open_connection(
            HOST, self._port, local_addr=(self._address, 0), limit=limit
        )
        head = "\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *fields, "", ""))
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def head(self) -> tuple[int, float]:
        """Read the head of the answer.

        Returns:
            Status and seconds of Retry-After; status 0 without an answer.
        """
        assert self._reader is not None
        try:
            text = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            return 0, 0.0
        lines = text.decode("latin-1").split("\r\n")
        fields = dict(line.lower().partition(":")[::2] for line in lines[1:] if line)
        return int(lines[0].split()[1]), float(fields.get("retry-after", "0"))

    def close(self) -> None:
        """Close the connection at once."""
        if self._writer is not None:
            self._writer.transport.abort()


async def ask(client: Client, method: str, path: str, at_s: float) -> Answer:
    """Send a request, read the head of its answer and close."""
    status, retry_after_s = 0, 0.0
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await client.send(method, path, "connection: close")
            status, retry_after_s = await client.head()
    client.close()
    return Answer(at_s, status, retry_after_s)


async def steady(port: int, rate_rps: float, seconds: float) -> list[Answer]:
    """Send plain requests of other users at an even rate.

    Returns:
        The answers in the order of their requests.
    """
    loop = asyncio.get_running_loop()
    began, tasks = loop.time(), []
    for number in range(round(rate_rps * seconds)):
        due_s = number / rate_rps
        await asyncio.sleep(max(0.0, began + due_s - loop.time()))
        user = Client(port, f"127.0.1.{1 + number % 200}")
        tasks.append(asyncio.create_task(ask(user, "GET", "/plain", due_s)))
    return list(await asyncio.gather(*tasks))
