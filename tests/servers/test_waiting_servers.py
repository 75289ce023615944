"""Requests queued for the one slot of a service, under every documented server, over real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from autoglm_throttle.admission.verdicts import DISCONNECT_WATCH_DELAY_S
from autoglm_throttle.asgi.receive import BUFFER_BYTES
from tests.servers.server import Server, cases
from tests.servers.test_servers import GRANIAN, HYPERCORN, UVICORN

pytestmark = pytest.mark.server

APP = "tests.servers.waiting_service:app"
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11 asyncio": (*UVICORN, "--http", "h11", "--loop", "asyncio", APP),
    "uvicorn httptools uvloop": (*UVICORN, "--http", "httptools", "--loop", "uvloop", APP),
    "granian": (*GRANIAN, "asgi", APP),
    "hypercorn asyncio": (*HYPERCORN, "asyncio", APP),
    "hypercorn trio": (*HYPERCORN, "trio", APP),
}
SOON_S = 60.0
COMPLAINTS = ("Traceback", "was destroyed", "never retrieved", "never awaited", "ERROR")
"""What a server or its event loop says when something was forgotten."""

NOTHING = {"in_flight": 0, "waiting": 0, "bodies": 0, "active": 0, "held": 0}
Send = Callable[[bytes], None]


@pytest.fixture(scope="module", params=cases(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(server: Server) -> Iterator[None]:
    yield
    server.get("/release")
    state = wait_for(server, **NOTHING)
    assert {name: state[name] for name in NOTHING} == NOTHING
    assert json.loads(server.get("/complaints").body) == []


def wait_for(server: Server, within_s: float = SOON_S, **wanted: object) -> dict[str, Any]:
    """The state once it is as wanted, or as it is at the end of the time."""
    deadline = time.monotonic() + within_s
    while True:
        state = server.state()
        if all(state[name] == value for name, value in wanted.items()) or time.monotonic() > deadline:
            return state
        time.sleep(0.005)


class Wire:
    """A connection on which bytes are sent as they are."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, path: str, *fields: str, method: str = "GET") -> None:
        self.send("\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *fields, "", "")).encode())

    def answer(self) -> tuple[int, bytes]:
        """Status and body of an answer with a stated length."""
        stream = self.socket.makefile("rb")
        status = int(stream.readline().split()[1])
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, stream.read(length)

    def leave(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def held(server: Server) -> Iterator[None]:
    """The only place is taken until the end of the block, by a request that ends then."""
    with contextlib.closing(server.connection()) as connection:
        connection.request("GET", "/hold")
        assert wait_for(server, held=1)["held"] == 1
        try:
            yield
        finally:
            server.get("/release")
            connection.getresponse().read()


def waits(server: Server) -> None:
    assert wait_for(server, waiting=1)["waiting"] == 1


def listens(server: Server) -> None:
    """It has waited long enough for the server to be asked what its client sends."""
    waits(server)
    time.sleep(1.2 * DISCONNECT_WATCH_DELAY_S)


def told(body: bytes) -> dict[str, Any]:
    return {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def sized(wire: Wire, body: bytes) -> tuple[bytes, bytes]:
    """A body with a stated length, in two halves; the cut is nowhere in particular."""
    wire.ask("/digest", f"content-length: {len(body)}", method="POST")
    cut = len(body) // 3
    return body[:cut], body[cut:]


def chunked(wire: Wire, body: bytes) -> tuple[bytes, bytes]:
    """The same in chunks; it is cut in the midst of one."""
    wire.ask("/digest", "transfer-encoding: chunked", method="POST")
    size = max(1, len(body) // 5)
    parts = (body[at : at + size] for at in range(0, len(body), size))
    coded = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    cut = len(coded) // 2
    return coded[:cut], coded[cut:]


@pytest.mark.parametrize("form", [sized, chunked])
@pytest.mark.parametrize("size", [20, 30_000, 4 * BUFFER_BYTES])
def test_an_upload_during_the_wait_arrives_whole(
    server: Server, form: Callable[[Wire, bytes], tuple[bytes, bytes]], size: int
) -> None:
    body = bytes(number % 251 for number in range(size))
    wire = Wire(server)
    with contextlib.closing(wire.socket):
        with held(server):
            first, second = form(wire, body)
            wire.send(first)
            if len(first) >= BUFFER_BYTES:  # a shorter one is awaited before the request is queued
                listens(server)
        time.sleep(0.01)  # a client that is slower than the turn
        wire.send(second)
        status, answer = wire.answer()
    assert (status, json.loads(answer)) == (200, told(body))


def test_a_slow_upload_that_ends_before_the_turn_arrives_whole(server: Server) -> None:
    wire = Wire(server)
    with contextlib.closing(wire.socket):
        with held(server):
            wire.ask("/digest", "content-length: 50", method="POST")
            for number in range(50):
                wire.send(b"%d" % (number % 10))
            listens(server)
        status, answer = wire.answer()
    assert (status, json.loads(answer)) == (200, told(b"0123456789" * 5))


@pytest.mark.parametrize("rounds", [6])
def test_parts_that_arrive_as_the_turn_comes_are_not_lost(server: Server, rounds: int) -> None:
    body = b"".join(b"%04d" % number for number in range(400))
    for number in range(rounds):
        wire = Wire(server)
        with contextlib.closing(wire.socket):
            with held(server):
                wire.ask("/digest", f"content-length: {len(body)}", method="POST")
                releaser = Wire(server)
                releaser.ask("/release")
                for at in range(0, len(body), 40 + number):
                    wire.send(body[at : at + 40 + number])
            assert json.loads(wire.answer()[1]) == told(body)
            releaser.leave()


def test_a_request_without_a_body_and_the_next_on_its_connection(server: Server) -> None:
    wire = Wire(server)
    with contextlib.closing(wire.socket):
        with held(server):
            wire.ask("/digest")
            waits(server)
        assert json.loads(wire.answer()[1]) == told(b"")
        wire.ask("/digest", "content-length: 3", method="POST")
        wire.send(b"abc")
        assert json.loads(wire.answer()[1]) == told(b"abc")


def test_an_app_that_reads_nothing_after_the_wait(server: Server) -> None:
    wire = Wire(server)
    with contextlib.closing(wire.socket):
        with held(server):
            wire.ask("/unread", "content-length: 10", method="POST")
            wire.send(b"whole body")
            waits(server)
        assert wire.answer() == (200, b"unread")


@pytest.mark.parametrize("sent", ["a body", "no body"])
def test_client_leaving_queue_is_removed_at_once(server: Server, sent: str) -> None:
    before = server.state()
    with held(server):
        tokens = server.state()["tokens"]
        wire = Wire(server)
        wire.ask("/digest", *(["content-length: 10"] if sent != "no body" else []), method="POST")
        wire.send({"a body": b"0123456789"}.get(sent, b""))
        waits(server)
        wire.leave()
        after = wait_for(server, waiting=0, left=before["left"] + 1)
        assert after["waiting"] == 0
        assert after["left"] == before["left"] + 1
        assert after["tokens"] >= tokens
    assert server.state()["calls"] == before["calls"], "the app was never called"


@pytest.mark.parametrize("sent", [b"", b"01234"], ids=["nothing", "half a body"])
def test_client_leaving_during_its_body_is_charged_nothing(server: Server, sent: bytes) -> None:
    before = server.state()
    wire = Wire(server)
    wire.ask("/digest", "content-length: 10", method="POST")
    wire.send(sent)
    assert wait_for(server, bodies=1)["bodies"] == 1
    wire.leave()
    after = wait_for(server, bodies=0)
    assert after["bodies"] == 0
    assert after["tokens"] >= before["tokens"]
    assert (after["calls"], after["left"]) == (before["calls"], before["left"]), "it was never queued"


def test_clients_that_leave_just_when_they_are_called(server: Server) -> None:
    for number in range(15):
        wire, releaser = Wire(server), Wire(server)
        with held(server):
            wire.ask("/brief")  # does not read: an app that does would log that its client has gone
            waits(server)
            steps: list[Callable[[], None]] = [wire.leave, partial(releaser.ask, "/release")]
            for step in steps if number % 2 else reversed(steps):
                step()
        releaser.leave()
    state = wait_for(server, **NOTHING)
    assert state["in_flight"] == state["waiting"] == 0


@pytest.mark.parametrize("waited", [True, False])
def test_a_stream_holds_its_place_until_its_client_has_left(server: Server, waited: bool) -> None:
    wire = Wire(server)
    with held(server) if waited else contextlib.nullcontext():
        wire.ask("/endless")
        if waited:
            waits(server)
    assert b"200" in wire.socket.recv(4096)
    state = wait_for(server, in_flight=1, active=1)
    assert (state["in_flight"], state["active"]) == (1, 1)
    queued = Wire(server)
    queued.ask("/digest")
    waits(server)
    wire.leave()
    assert queued.answer()[0] == 200
    queued.leave()


def test_websocket_waits_in_queue_and_holds_slot(server: Server) -> None:
    with held(server):
        wire = Wire(server)
        wire.ask("/ws", *WEBSOCKET)
        waits(server)
    head = wire.socket.recv(4096)
    assert b" 101 " in head.splitlines()[0]
    state = wait_for(server, in_flight=1)
    assert (state["in_flight"], state["active"]) == (1, 1)
    wire.send(bytes([0x81, 0x82, 0, 0, 0, 0]) + b"hi")
    assert wire.socket.recv(100) == b"\x81\x02hi"
    queued = Wire(server)
    queued.ask("/digest")
    waits(server)
    wire.leave()
    assert queued.answer()[0] == 200
    queued.leave()


WEBSOCKET = (
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version: 13",
)


def test_websocket_leaving_queue_is_removed(server: Server) -> None:
    before = server.state()
    with held(server):
        wire = Wire(server)
        wire.ask("/ws", *WEBSOCKET)
        waits(server)
        wire.leave()
        if "granian" in server.output.lower():  # it says nothing before the accept
            server.get("/release")
        assert wait_for(server, waiting=0)["waiting"] == 0
    state = wait_for(server, **NOTHING)
    assert state["calls"] == before["calls"] + ("granian" in server.output.lower())


def test_nothing_was_complained_about(server: Server) -> None:
    assert not complaints(server.output)


def complaints(said: str) -> list[str]:
    """The errors in the output of a server.

    Under trio Hypercorn itself ends a connection while it may still be sending, and logs an error of its own.
    """
    words = COMPLAINTS[1:-1] if "trio.BusyResourceError" in said else COMPLAINTS
    return [line for line in said.splitlines() if any(word in line for word in words)]
