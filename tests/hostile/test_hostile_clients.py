"""Slow, silent and leaving clients beside ordinary users, who are served."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.hostile.attacks import Attack
from tests.servers.server import ANSWER_S, Server, cases
from tests.servers.test_servers import GRANIAN, HYPERCORN, UVICORN

pytestmark = pytest.mark.server

APP = "tests.hostile.slot_service:app"
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11": (*UVICORN, "--http", "h11", "--loop", "asyncio", APP),
    "uvicorn httptools uvloop": (*UVICORN, "--http", "httptools", "--loop", "uvloop", APP),
    "granian": (*GRANIAN, "asgi", APP),
    "hypercorn": (*HYPERCORN, "asyncio", APP),
}
NUMBER = 40
"""Five times the slots."""

ORDINARY = 20
NOTHING = dict.fromkeys(("in_flight", "paused", "waiting", "bodies", "active"), 0)

UPLOAD = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
CHUNKED = b"POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)

HOLDERS: dict[str, bytes] = {
    "a head that never ends": b"GET /brief HTTP/1.1\r\nHost: a\r\nX-Long: ",
    "a body that never comes": UPLOAD,
    "a chunked body that never comes": CHUNKED,
    "a chunk that never ends": CHUNKED + b"ffff\r\nabc",
    "a body that waits for 100-continue": UPLOAD.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "a body with one byte missing": UPLOAD + b"x" * 999,
    "a body for an endpoint that reads none": UPLOAD.replace(b"/upload", b"/brief"),
    "a body of a GET": UPLOAD.replace(b"POST", b"GET"),
    "a huge length": UPLOAD.replace(b"1000", b"999999999999"),
    "a reader that never reads": b"GET /download HTTP/1.1\r\nHost: a\r\n\r\n",
    "a reader of a silent stream": b"GET /feed HTTP/1.1\r\nHost: a\r\n\r\n",
    "a silent websocket": WEBSOCKET,
    "many requests at once, and no reader": b"GET /brief HTTP/1.1\r\nHost: a\r\n\r\n" * 50,
}
"""Kind of client -> the bytes that it sends before it falls silent."""

TRICKLERS = ("a body that never comes", "a head that never ends", "a body of a GET")


@pytest.fixture(params=cases(SERVERS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    running = Server(*request.param)
    yield running
    running.stop()


def hostile(port: int, number: int, data: bytes) -> socket.socket:
    """Connect from an address of its own, with a small buffer, and send bytes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(ANSWER_S)
    connection.bind((f"127.0.9.{1 + number}", 0))
    connection.connect(("127.0.0.1", port))
    connection.sendall(data)
    return connection


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def served(server: Server, between: Callable[[], None] = lambda: None) -> list[int]:
    """Send ordinary requests one after the other, and return their statuses."""
    found = []
    for _ in range(ORDINARY):
        found.append(server.get("/brief").status)
        between()
    return found


def settled(server: Server) -> object:
    """Return what is held once nothing is held, or at the end of the time."""
    return server.until("held", NOTHING)


ALL_SERVED = [200] * ORDINARY


@pytest.mark.parametrize("kind", HOLDERS)
def test_silent_clients_leave_slots_to_others(attack: Attack, server: Server, kind: str) -> None:
    with attack(f"clients: {kind}", times=NUMBER), contextlib.ExitStack() as clients:
        for number in range(NUMBER):
            clients.enter_context(hostile(server.port, number, HOLDERS[kind]))
        assert served(server) == ALL_SERVED
        clients.close()
        assert settled(server) == NOTHING


@pytest.mark.parametrize("kind", TRICKLERS)
def test_tricklers_leave_slots_to_others(attack: Attack, server: Server, kind: str) -> None:
    with attack(f"clients: a byte at a time, {kind}", times=NUMBER), contextlib.ExitStack() as clients:
        opened = [hostile(server.port, number, HOLDERS[kind]) for number in range(NUMBER)]
        for client in opened:
            clients.enter_context(client)

        def trickle() -> None:
            for client in opened:
                client.sendall(b"x")

        assert served(server, trickle) == ALL_SERVED
        clients.close()
        assert settled(server) == NOTHING


def test_half_closed_sockets_leave_slots_to_others(attack: Attack, server: Server) -> None:
    with attack("clients: half-closed sockets", times=NUMBER * len(HOLDERS)):
        for kind, data in HOLDERS.items():
            with contextlib.ExitStack() as clients:
                for number in range(NUMBER):
                    client = clients.enter_context(hostile(server.port, number, data))
                    with contextlib.suppress(OSError):  # the server may have closed it
                        client.shutdown(socket.SHUT_WR)
                assert served(server) == ALL_SERVED, kind
            assert settled(server) == NOTHING, kind


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("path", ["/upload", "/download", "/feed", "/ws"])
def test_disconnects_at_each_step_leave_nothing(
    attack: Attack, server: Server, path: str, leave: Callable[[socket.socket], None]
) -> None:
    whole = UPLOAD.replace(b"1000", b"10") + b"0123456789"
    data = whole if path == "/upload" else WEBSOCKET.replace(b"/ws", path.encode())
    with attack("clients: a disconnect after each byte", times=len(data) + NUMBER):
        for cut in range(len(data) + 1):
            leave(hostile(server.port, cut % 200, data[:cut]))
        for number in range(NUMBER):  # after the first bytes of the answer
            client = hostile(server.port, number, data)
            client.recv(1)
            leave(client)
        assert served(server) == ALL_SERVED
        assert settled(server) == NOTHING


@pytest.mark.slow
def test_all_kinds_at_once_leave_slots_to_others(attack: Attack, server: Server) -> None:
    with attack("clients: all kinds at once", times=NUMBER * len(HOLDERS)), contextlib.ExitStack() as clients:
        for number in range(NUMBER):
            for data in HOLDERS.values():
                clients.enter_context(hostile(server.port, number, data))
        assert served(server) == ALL_SERVED
        clients.close()
        assert settled(server) == NOTHING
