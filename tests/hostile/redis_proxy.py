"""A proxy before a real Redis that spoils replies to scripts and subscriptions, with a thread per connection.

A spoiler receives a connection and the server's raw reply, and sends the client whatever it likes; `Closed`
ends the connection. Handshakes pass unless the proxy spoils everything.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from io import BufferedReader
from typing import Final, Self

from tests.store.server import free_port

SPOILED: Final = {b"EVALSHA", b"EVAL", b"SUBSCRIBE", b"PING"}

HANG_S: Final = 60.0


class Closed(Exception):
    """The connection ends."""


class Connection:
    """One client's connection, and a second one to the server."""

    def __init__(self, client: socket.socket, target: int, over: threading.Event) -> None:
        self.client = client
        self.server = socket.create_connection(("127.0.0.1", target), HANG_S)
        self.over = over
        """Set when the attack is over."""
        self.chance = random.Random(1)
        self.kept: list[bytes] = []
        """Replies for a later command."""
        self.is_subscribed = False

    def send(self, data: bytes) -> None:
        self.client.sendall(data)

    def close(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


Spoiler = Callable[[Connection, bytes], None]


class HostileProxy:
    """Behaves until `attack`, and again after `behave`; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._spoiler: Spoiler | None = None
        self._everything = False
        self._over = threading.Event()
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.port = free_port()
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def attack(self, spoiler: Spoiler, *, everything: bool = False) -> None:
        """Spoil replies from now on; subscriptions begin anew."""
        self._everything, self._spoiler = everything, spoiler
        self._over.clear()
        self._cut(only_subscribed=not everything)

    def behave(self) -> None:
        """End the attack, or the refusal of connections."""
        self._spoiler = None
        self._over.set()
        self._cut()
        if self._listener is None:
            self._listen()

    def refuse(self) -> None:
        """Refuse connections, and end all."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends a blocked accept
            listener.close()
        self._over.set()
        self._cut()

    def _cut(self, *, only_subscribed: bool = False) -> None:
        for connection in list(self._connections):
            if connection.is_subscribed or not only_subscribed:
                connection.close()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        connection = Connection(client, self._target, self._over)
        self._connections.add(connection)
        try:
            self._converse(connection)
        except (OSError, ValueError, Closed):
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    def _converse(self, connection: Connection) -> None:
        commands, replies = connection.client.makefile("rb"), connection.server.makefile("rb")
        while True:
            command, name = read_command(commands)
            connection.server.sendall(command)
            if name == b"SUBSCRIBE":
                connection.is_subscribed = True
                if self._spoiler is None:
                    pump = threading.Thread(target=_pump, args=(connection,), daemon=True)
                    pump.start()
            if connection.is_subscribed and self._spoiler is None:
                continue
            reply = read_value(replies)
            spoiler = self._spoiler
            if spoiler is None or not (self._everything or name in SPOILED):
                connection.send(reply)
            else:
                spoiler(connection, reply)


def _pump(connection: Connection) -> None:
    with contextlib.suppress(OSError):
        while data := connection.server.recv(65_536):
            connection.send(data)


def read_value(stream: BufferedReader) -> bytes:
    """Read one value of RESP2, as it is."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise Closed
    if line[:1] == b"$" and line != b"$-1\r\n":
        return line + stream.read(int(line[1:]) + 2)
    if line[:1] == b"*":
        return line + b"".join(read_value(stream) for _ in range(max(0, int(line[1:]))))
    return line


def read_command(stream: BufferedReader) -> tuple[bytes, bytes]:
    """Read one command, as it is, and its name."""
    line = stream.readline()
    if line[:1] != b"*":
        raise Closed
    parts = [read_value(stream) for _ in range(int(line[1:]))]
    return line + b"".join(parts), parts[0].split(b"\r\n")[1].upper()
