"""Spellings of a path and methods under real servers: none passes a limit that the plain one meets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.path_service import COST, LIMIT, LIMIT_OF_ROUTE
from tests.servers.server import Server, cases, fresh_key
from tests.servers.test_servers import GRANIAN, HYPERCORN, UVICORN

pytestmark = pytest.mark.server

APP = "tests.servers.path_service:app"
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11 asyncio": (*UVICORN, "--http", "h11", "--loop", "asyncio", APP),
    "uvicorn httptools uvloop": (*UVICORN, "--http", "httptools", "--loop", "uvloop", APP),
    "granian": (*GRANIAN, "asgi", APP),
    "hypercorn asyncio": (*HYPERCORN, "asyncio", APP),
}
TIMES = LIMIT + 2
ORIGIN = {"origin": "https://shop.example"}
PREFLIGHT = ORIGIN | {"access-control-request-method": "POST"}


@pytest.fixture(scope="module", params=cases(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


def served(server: Server, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> int:
    """The number of requests of a new caller that reach a handler; all others are 429."""
    sent = fresh_key() | (headers or {})
    statuses = [server.get(path, sent, method).status for _ in range(TIMES)]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


# FIELD 5
@pytest.mark.parametrize("headers", [{}, ORIGIN, {"access-control-request-method": "POST"}])
def test_options_without_preflight_fields_is_limited(server: Server, headers: dict[str, str]) -> None:
    assert served(server, "/v1/chat", "OPTIONS", headers) == LIMIT


# FIELD 5
def test_preflight_is_free(server: Server) -> None:
    assert served(server, "/v1/chat", "OPTIONS", PREFLIGHT) == TIMES


# FIELD 16
@pytest.mark.parametrize("path", ["/v1/generate", "/v1/generate%0a", "/v1/generate%0A"])
def test_line_feed_behind_path_keeps_its_policy(server: Server, path: str) -> None:
    assert served(server, path) == LIMIT_OF_ROUTE


# FIELD 16
@pytest.mark.parametrize("path", ["/marked", "/marked%0a"])
def test_line_feed_behind_path_keeps_its_mark(server: Server, path: str) -> None:
    assert served(server, path) == LIMIT // COST


# FIELD 16
@pytest.mark.parametrize("path", ["/ws", "/ws%0a"])
def test_line_feed_behind_websocket_keeps_policy(server: Server, path: str) -> None:
    key, statuses = fresh_key(), []
    for _ in range(LIMIT_OF_ROUTE + 1):
        status, _, connection = server.handshake(key, path)
        connection.close()
        statuses.append(status)
    assert statuses[:-1] == [101] * LIMIT_OF_ROUTE
    assert statuses[-1] in {403, 429}


# FIELD 17
def test_head_is_limited_like_get(server: Server) -> None:
    assert served(server, "/v1/generate", "HEAD") == LIMIT_OF_ROUTE


# FIELD 18
@pytest.mark.parametrize(
    "path",
    [
        "/internal/../v1/chat",
        "/internal/%2e%2e/v1/chat",
        "/internal/..%2fv1/chat",
        "/internal/./x",
        "/internal/..;/v1/chat",
        "/internal/..",
        "//internal/x",
        "/internal/x%0a",
    ],
)
def test_ambiguous_path_is_not_exempt(server: Server, path: str) -> None:
    assert served(server, path) == LIMIT


# FIELD 18
@pytest.mark.parametrize("path", ["/internal/x", "/internal/.well-known/a..b", "/internal/...", "/internal/"])
def test_plain_path_stays_exempt(server: Server, path: str) -> None:
    assert served(server, path) == TIMES


# FIELD 14
def test_charge_of_dependency_is_one_with_the_request(server: Server) -> None:
    key = fresh_key()
    first, second = (server.get("/half", key) for _ in range(2))
    assert first.headers["ratelimit"].startswith(f'"user-60s";r={LIMIT // 2 - 1};')
    assert (first.status, second.status) == (200, 429)
    refunded = [server.get("/v1/chat", key).status for _ in range(LIMIT // 2)]
    assert refunded == [200] * (LIMIT // 2 - 1) + [429]


# FIELD 14
def test_charge_that_never_fits_is_too_large(server: Server) -> None:
    key = fresh_key()
    answers = [server.get("/too-dear", key) for _ in range(3)]
    assert [answer.status for answer in answers] == [413] * 3
    assert answers[-1].headers["ratelimit"].startswith(f'"user-60s";r={LIMIT};')
