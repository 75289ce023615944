"""The least of a Redis client, for tests that trust no library: one command over one blocking socket."""

from __future__ import annotations

import socket
from io import BufferedReader
from typing import Any


class ReplyError(Exception):
    """The server answered with an error."""


def encode(arguments: tuple[object, ...]) -> bytes:
    parts = [argument if isinstance(argument, bytes) else str(argument).encode() for argument in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def decode(stream: BufferedReader) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise ReplyError(rest.decode())
    if kind == b"+":
        return rest.decode()
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2].decode(errors="replace")
    return None if rest == b"-1" else [decode(stream) for _ in range(int(rest))]


def ask(port: int, *arguments: object, password: str = "", timeout_s: float = 60.0) -> Any:
    """One command on a new connection.

    Raises:
        ReplyError: the server answered with an error.
        OSError: it did not answer.
    """
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        stream = connection.makefile("rb")
        if password:
            connection.sendall(encode(("AUTH", password)))
            decode(stream)
        connection.sendall(encode(arguments))
        return decode(stream)
