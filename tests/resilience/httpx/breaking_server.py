"""A server of HTTP that breaks its answers in the middle, each in a way of its own."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"

WHOLE = {
    "/sized": OK + b"content-length: 4\r\n\r\nbody",
    "/chunked": OK + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    "/until-closed": OK + b"\r\nbody",
    "/empty": OK + b"content-length: 0\r\n\r\n",
}
"""Answers that are complete."""

BROKEN = {
    "/short": OK + b"content-length: 400\r\n\r\nbody",
    "/cut-chunk": OK + b"transfer-encoding: chunked\r\n\r\n40\r\nbody",
    "/no-last-chunk": OK + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n",
    "/no-chunk": OK + b"transfer-encoding: chunked\r\n\r\nbody\r\n",
    "/reset": OK + b"content-length: 400\r\n\r\nbody",
}
"""Answers that begin well and break off."""

DUMB = {"/closed": b"", "/half-headers": b"HTTP/1.1 200 OK\r\nconte", "/no-http": b"hello\r\n\r\n"}
"""No answers at all."""

HANGING = {
    "/silent": b"",
    "/stalled": OK + b"content-length: 400\r\n\r\nbody",
    "/stalled-chunk": OK + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n",
}
"""After which nothing more comes until the client leaves."""

OTHERS = {"/busy": b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbusy"}

ANSWERS = WHOLE | BROKEN | DUMB | HANGING | OTHERS


class Handler(socketserver.BaseRequestHandler):
    """One connection, one request."""

    def handle(self) -> None:
        path = self._path()
        self.request.sendall(ANSWERS[path])
        if path in HANGING:
            while self.request.recv(4096):
                pass
        if path == "/reset":
            # No time to linger: what is closed so is reset.
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _path(self) -> str:
        requested = b""
        while b"\r\n\r\n" not in requested:
            requested += self.request.recv(4096)
        return requested.split(b" ", 2)[1].decode()


class Server(socketserver.ThreadingTCPServer):
    """Answers by path, on a port of its own."""

    allow_reuse_address = True
    daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left while it was answered is no news."""


@contextmanager
def breaking_server() -> Iterator[str]:
    """The URL of a server that runs meanwhile."""
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
