"""Thousands of requests with every kind of ending; a server that stops; and a dry run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.servers.server import Server, cases
from tests.servers.test_waiting_servers import (
    NOTHING,
    SERVERS,
    WEBSOCKET,
    Wire,
    held,
    wait_for,
)
from tests.servers.waiting_service import UNITS

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("load")]

REQUESTS = 3_000
AT_ONCE = 100
RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing sends a reset."""

PATHS = ("/brief",) * 16 + ("/digest",) * 8 + ("/fails", "/endless", "/ws", "/nowhere")
FATES = ("reads",) * 5 + ("closes", "resets", "times out", "half")


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    name, environment = request.param
    monkeypatch.setattr("tests.servers.server.ENVIRONMENT", environment)
    server = Server(*SERVERS[name])
    yield server
    server.stop()


CROWDED = {"PLACES": "2", "SLO_S": "0.1", "RATE_RPS": "1000"}
"""Too little for `AT_ONCE`: a half body holds no place, so the others must fill them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "server", [("uvicorn httptools uvloop", CROWDED), ("uvicorn h11 asyncio", CROWDED)], indirect=True
)
def test_nothing_leaks_for_any_client_behaviour(server: Server) -> None:
    rng = random.Random(7)
    asyncio.run(crowd(server.port, rng))
    server.get("/release")
    state = wait_for(server, **NOTHING)
    assert {name: state[name] for name in NOTHING} == NOTHING
    assert state["ended"] == state["admitted"]
    assert state["stale"] == 0
    assert state["admitted"] > REQUESTS / 100
    assert state["shed"] > 0
    last = server.get("/brief")
    left = int(last.headers["ratelimit"].partition("r=")[2].partition(";")[0])
    assert left == UNITS - state["admitted"] - 1, "no unit of a request that was not admitted is gone"
    assert forgotten(server.output) == []


async def crowd(port: int, rng: random.Random) -> None:
    """All requests, so many at once."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(path: str, fate: str, patience_s: float) -> None:
        async with turn:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(patience_s):
                    await request(port, path, fate)

    async with asyncio.TaskGroup() as group:
        for _ in range(REQUESTS):
            path, fate = rng.choice(PATHS), rng.choice(FATES)
            reads = fate == "reads" and path not in {"/endless", "/ws"}
            group.create_task(one(path, fate, 30.0 if reads else rng.uniform(0.0, 0.1)))


async def request(port: int, path: str, fate: str) -> None:
    """One request. A client that does not read the answer disconnects after its timeout, or at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        fields = list(WEBSOCKET) if path == "/ws" else ["connection: close"]
        body = b""
        if path == "/digest":
            body = b"x" * (10 if fate != "half" else 5)
            fields.append("content-length: 10")
        method = "POST" if body else "GET"
        head = "\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *fields, "", ""))
        writer.write(head.encode() + body)
        if fate in {"closes", "resets"}:
            await asyncio.sleep(0.002)
        else:
            await reader.read()
    finally:
        if fate == "resets":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        writer.close()


PATIENCE = {
    "uvicorn": ("--timeout-graceful-shutdown", "1"),
    "granian": ("--workers-kill-timeout", "1"),
}
"""How each server is told not to wait for ever for its clients."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_server_stop_with_queued_requests_logs_no_error(name: str) -> None:
    *command, app = SERVERS[name]
    server = Server(*command, *PATIENCE.get(command[1], ()), app)
    wires = [Wire(server) for _ in range(3)]
    try:
        wires[0].ask("/hold")
        wait_for(server, held=1)
        for wire, body in zip(wires[1:], (b"whole body", b"half"), strict=True):
            wire.ask("/digest", "content-length: 10", method="POST")
            wire.send(body)
        state = wait_for(server, waiting=1, bodies=1)
        assert (state["waiting"], state["bodies"]) == (1, 1)
        os.killpg(server.process.pid, signal.SIGTERM)
        server.process.wait(60.0)
        assert forgotten(server.output) == []
    finally:
        server.stop()
        for wire in wires:
            wire.leave()


def forgotten(said: str) -> list[str]:
    """Warnings of the interpreter about unfinished tasks; a cancelled app may be logged."""
    return [word for word in ("was destroyed", "never retrieved", "never awaited") if word in said]


@pytest.mark.parametrize(
    "server",
    cases({name: (name, {"DRY_RUN": "1", "RATE_RPS": "0.001"}) for name in SERVERS}),
    indirect=True,
)
def test_dry_run_answers_all_requests(server: Server) -> None:
    with held(server):
        assert [server.get(path).status for path in ("/digest", "/brief") * 5] == [200] * 10
        status, _, connection = server.handshake({})
        connection.close()
        assert status == 101
        state = server.state()
        assert (state["waiting"], state["shed"], state["limited"]) == (0, 0, 0)
        assert state["would_reject"] >= 5


@pytest.mark.parametrize(
    "server", cases({name: (name, {"WEBSOCKETS": "rate"}) for name in SERVERS}), indirect=True
)
def test_a_websocket_that_counts_by_its_rate_never_waits(server: Server) -> None:
    with held(server):
        status, _, connection = server.handshake({})
        with contextlib.closing(connection):
            assert status == 101
            state = server.state()
            assert (state["in_flight"], state["waiting"], state["active"]) == (1, 0, 2)
    assert wait_for(server, **NOTHING)["active"] == 0
