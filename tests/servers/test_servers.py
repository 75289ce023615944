"""Limits, answers, streams, websockets and the sampler under every documented server, over real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.servers.server import Server, ask, cases, fresh_key
from tests.servers.service import CHUNKS, LIMIT

pytestmark = pytest.mark.server

TIMES = LIMIT + 3
EXACTLY = [200] * LIMIT + [429] * 3
APP, REFUSING = "tests.servers.service:app", "tests.servers.service:refusing"

UVICORN = ("-m", "uvicorn", "--port", "{port}", "--log-level", "info", "--no-access-log")
GRANIAN = ("-m", "granian", "--port", "{port}", "--interface")
HYPERCORN = ("-m", "hypercorn", "--bind", "127.0.0.1:{port}", "--graceful-timeout", "0", "--worker-class")

SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11 asyncio": (*UVICORN, "--http", "h11", "--loop", "asyncio", "--lifespan", "on", APP),
    "uvicorn h11 uvloop, lifespan off": (
        *UVICORN,
        "--http",
        "h11",
        "--loop",
        "uvloop",
        "--lifespan",
        "off",
        APP,
    ),
    "uvicorn httptools uvloop": (
        *UVICORN,
        "--http",
        "httptools",
        "--loop",
        "uvloop",
        "--lifespan",
        "on",
        APP,
    ),
    "uvicorn httptools asyncio, lifespan refused": (
        *UVICORN,
        "--http",
        "httptools",
        "--loop",
        "asyncio",
        REFUSING,
    ),
    "granian": (*GRANIAN, "asgi", APP),
    "granian without lifespan": (*GRANIAN, "asginl", APP),
    "hypercorn asyncio": (*HYPERCORN, "asyncio", APP),
    "hypercorn asyncio, lifespan refused": (*HYPERCORN, "asyncio", REFUSING),
    "hypercorn trio": (*HYPERCORN, "trio", APP),
    "hypercorn trio, lifespan refused": (*HYPERCORN, "trio", REFUSING),
    "forked after loading": ("-m", "tests.servers.prefork", "{port}"),
}


@pytest.fixture(scope="module", params=cases(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


def test_exactly_the_limit_passes(server: Server) -> None:
    key = fresh_key()
    with contextlib.closing(server.connection()) as connection:
        assert [ask(connection, "/ok", key).status for _ in range(TIMES)] == EXACTLY


def test_exactly_the_limit_passes_for_missing_paths(server: Server) -> None:
    key = fresh_key()
    with contextlib.closing(server.connection()) as connection:
        answers = [ask(connection, "/nowhere", key, "HEAD").status for _ in range(TIMES)]
    assert answers == [404] * LIMIT + [429] * 3


def test_rejection_arrives_intact(server: Server) -> None:
    key = fresh_key()
    with contextlib.closing(server.connection()) as connection:
        admitted = [ask(connection, "/ok", key) for _ in range(LIMIT)]
        refused = ask(connection, "/ok", key, "POST")
        assert ask(connection, "/ok", fresh_key()).status == 200, "the connection goes on"
    assert admitted[0].headers["ratelimit-policy"] == '"user-60s";q=5;w=60'
    assert admitted[-1].headers["ratelimit"].startswith('"user-60s";r=0;t=')
    assert [admitted[0].names.count(name) for name in ("ratelimit", "ratelimit-policy")] == [1, 1]
    assert refused.status == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.body)
    assert 1 <= int(refused.headers["retry-after"]) <= 66
    assert json.loads(refused.body)["reason"] == "user:user-60s"


def test_rejection_of_large_upload_does_not_wait(server: Server) -> None:
    key = fresh_key()
    for _ in range(LIMIT):
        server.get("/ok", key)
    with contextlib.closing(server.connection()) as connection:
        connection.putrequest("POST", "/ok")
        for name, value in {**key, "content-length": "10000000000"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 429


def test_stream_is_not_buffered(server: Server) -> None:
    with contextlib.closing(server.connection()) as connection:
        connection.request("GET", "/stream", headers=fresh_key())
        response = connection.getresponse()
        assert response.getheader("ratelimit")
        for number in range(CHUNKS):
            assert response.read1(100) == b"data: %d\n\n" % number, "must be here before the next is made"
            server.get("/next")
        assert response.read() == b""
    assert server.until("active", 0) == 0


def test_websocket_is_admitted_then_rejected(server: Server) -> None:
    key = fresh_key()
    for _ in range(LIMIT):
        status, _, connection = server.handshake(key)
        connection.close()
        assert status == 101
    status, headers, connection = server.handshake(key)
    connection.close()
    assert status in {403, 429}
    if status == 429:
        assert int(headers["retry-after"]) >= 1
    assert server.until("active", 0) == 0


def test_websocket_still_talks(server: Server) -> None:
    status, _, connection = server.handshake(fresh_key())
    with contextlib.closing(connection):
        assert status == 101
        connection.sendall(bytes([0x81, 0x82, 0, 0, 0, 0]) + b"hi")  # a masked text frame, mask 0
        assert connection.recv(100) == b"\x81\x02hi"


def test_sampler_lives_in_the_worker(server: Server) -> None:
    server.get("/ok", fresh_key())
    assert server.until("telemetry", "fresh") == "fresh"
    assert server.state()["sampler"] == ["autoglm-throttle-gpu-fake"]
