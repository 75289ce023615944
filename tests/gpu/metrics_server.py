"""An HTTP server with faults chosen by the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[socket.socket, str], None]
"""Function that handles a connection after its request was read: gets the socket and the request head."""


class BadServer:
    """Listens on loopback; each connection is handled by the current ``answer``."""

    def __init__(self) -> None:
        self.answer: Answer = page(b"")
        self.requests: list[str] = []
        self.over = threading.Event()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.up()

    def up(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.settimeout(0.05)  # closing a socket wakes nobody on macOS
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def down(self) -> None:
        """Reject connections."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept() on Linux
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        self.over.set()
        self.down()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def url(self, path: str = "", login: str = "") -> str:
        return f"http://{login}127.0.0.1:{self.port}{path}"

    def _start(self, target: Callable[[socket.socket], None], connection: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(connection,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self.over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            connection.settimeout(10)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            text = head.decode("latin-1")
            self.requests.append(text)
            self.answer(connection, text)


def page(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Answer:
    """Build a whole page; ``length`` is its stated content length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return lambda connection, _: connection.sendall(head + body)


def raw(data: bytes) -> Answer:
    return lambda connection, _: connection.sendall(data)


@contextlib.contextmanager
def served() -> Iterator[BadServer]:
    server = BadServer()
    try:
        yield server
    finally:
        server.close()
