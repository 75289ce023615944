"""Requests as bytes over a socket, without a client library that would correct them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.servers.server import ANSWER_S

HEAD = b"Host: 127.0.0.1\r\nConnection: close\r\n"


@dataclass(frozen=True)
class RawAnswer:
    """Status and body of an answer; status 0: the server closed the connection without one."""

    status: int
    body: bytes

    @property
    def report(self) -> dict[str, Any]:
        """The body as JSON; empty if it is no object."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def opened(port: int) -> socket.socket:
    """Connect."""
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)


def exchange(port: int, data: bytes) -> RawAnswer:
    """Send bytes on a connection of their own, and read the first answer."""
    with opened(port) as connection:
        # The server may answer and close before it has read all.
        with contextlib.suppress(OSError):
            connection.sendall(data)
        return answer(connection)


def answer(connection: socket.socket, method: str = "GET") -> RawAnswer:
    """Read one answer."""
    response = http.client.HTTPResponse(connection, method=method)
    try:
        response.begin()
        return RawAnswer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return RawAnswer(0, b"")
    finally:
        response.close()


def request(target: str, method: str = "GET", fields: bytes = b"", version: str = "1.1") -> bytes:
    """Build a request; the target is sent as it is."""
    line = f"{method} {target} HTTP/{version}\r\n".encode("latin-1")
    return line + HEAD + fields + b"\r\n"


def websocket_report(port: int, target: str) -> RawAnswer:
    """Open a websocket, and return the text of the first frame as the body; status 101 if it was accepted."""
    upgrade = (
        b"Host: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with opened(port) as connection, connection.makefile("rb") as reader:
        connection.sendall(f"GET {target} HTTP/1.1\r\n".encode("latin-1") + upgrade)
        line = reader.readline()
        if b" 101 " not in line:
            return RawAnswer(int(line.split()[1]) if line.startswith(b"HTTP/") else 0, b"")
        while reader.readline().strip():
            pass
        first, length = reader.read(2)
        if length == 126:
            length = int.from_bytes(reader.read(2), "big")
        return RawAnswer(101, reader.read(length) if first == 0x81 else b"")
