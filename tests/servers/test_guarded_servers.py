"""The breaker round an app under real servers: each failure is counted, and no client that leaves."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers.server import ANSWER_S, Server, ask, cases
from tests.servers.test_servers import GRANIAN, HYPERCORN, UVICORN

pytestmark = pytest.mark.server

APP = "tests.servers.guarded_service:app"
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11 asyncio": (*UVICORN, "--http", "h11", "--loop", "asyncio", APP),
    "uvicorn httptools uvloop": (*UVICORN, "--http", "httptools", "--loop", "uvloop", APP),
    "granian": (*GRANIAN, "asgi", APP),
    "hypercorn trio": (*HYPERCORN, "trio", APP),
}
TIMES = 20
RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing sends a reset."""

Leave = Callable[[socket.socket], None]


@pytest.fixture(scope="module", params=cases(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


def rested(server: Server) -> dict[str, Any]:
    """The figures of the breaker once nothing is in flight."""
    deadline = time.monotonic() + ANSWER_S
    while (state := server.state())["under_way"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state["under_way"] == 0, "somebody is still served who has gone"
    assert state["active"] == 0
    return state


def fresh(server: Server) -> dict[str, Any]:
    """The state after a success, which ends any row of failures."""
    assert server.get("/ok").status == 200
    state = rested(server)
    assert state["streak"] == 0
    return state


@pytest.mark.parametrize("path", ["/breaks", "/raw/breaks"])
def test_each_break_in_mid_body_is_counted(server: Server, path: str) -> None:
    before = fresh(server)
    for _ in range(TIMES):
        with contextlib.suppress(http.client.HTTPException, ConnectionError):
            server.get(path)
    after = rested(server)
    assert after["streak"] == TIMES
    assert after["failure"] - before["failure"] == TIMES
    assert after["last_failure"] == "RuntimeError: meant to break off"


def test_each_failure_before_the_answer_is_counted(server: Server) -> None:
    fresh(server)
    assert [server.get("/fails").status for _ in range(TIMES)] == [500] * TIMES
    assert rested(server)["streak"] == TIMES


def closes(connection: socket.socket) -> None:
    connection.close()


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


@pytest.mark.parametrize("leave", [closes, resets])
@pytest.mark.parametrize("path", ["/endless", "/raw/all", "/slow", "/digest"])
def test_no_client_that_leaves_is_counted(server: Server, path: str, leave: Leave) -> None:
    fresh(server)
    for number in range(TIMES):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S)
        if path == "/digest":
            head = "POST /digest HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf"
        else:
            head = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"
        connection.sendall(head.encode())
        if path in {"/slow", "/digest"}:
            time.sleep(0.005 * (number % 3))
        else:
            assert connection.recv(100)
        leave(connection)
    assert rested(server)["streak"] == 0


def test_no_websocket_that_is_dropped_is_counted(server: Server) -> None:
    fresh(server)
    for number in range(TIMES):
        status, _, connection = server.handshake({})
        assert status == 101
        (closes, resets)[number % 2](connection)
    assert rested(server)["streak"] == 0


def test_an_answer_that_is_not_brought_to_its_end_is_counted(server: Server) -> None:
    fresh(server)
    broken = contextlib.suppress(http.client.HTTPException, ConnectionError, TimeoutError)
    with broken, contextlib.closing(server.connection()) as connection:
        connection.timeout = 0.5
        ask(connection, "/raw/returns")
    assert rested(server)["streak"] == 1
