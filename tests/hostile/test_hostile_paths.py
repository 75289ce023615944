"""Spellings of paths and methods: no endpoint runs without the policy, mark or charge that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.asgi.run_app import Scope, at_once, http_scope
from tests.hostile import path_service
from tests.hostile.attacks import Attack
from tests.hostile.path_service import DEFAULT, FREE, MARK, POLICY
from tests.hostile.path_spellings import SPELLINGS
from tests.hostile.raw_http import RawAnswer, exchange, request, websocket_report
from tests.servers.server import Server, cases
from tests.servers.test_servers import GRANIAN, HYPERCORN, UVICORN

APP = "tests.hostile.path_service:app"
SERVERS: dict[str, tuple[str, ...]] = {
    "uvicorn h11": (*UVICORN, "--http", "h11", "--loop", "asyncio", APP),
    "uvicorn httptools uvloop": (*UVICORN, "--http", "httptools", "--loop", "uvloop", APP),
    "granian": (*GRANIAN, "asgi", APP),
    "hypercorn": (*HYPERCORN, "asyncio", APP),
}
PATHS = ("/v1/generate", "/v1/read", "/marked/7", "/sub/costly", "/free", "/internal/a", "/gw/x")
SOCKETS = ("/v1/ws", "/internal/ws")

COSTS: dict[str, tuple[float, ...]] = {
    "generate": (POLICY,),
    "reader": (POLICY,),
    "ws": (POLICY,),
    "marked": (MARK,),
    "gateway": (DEFAULT,),
    "free": (FREE, DEFAULT),
    "internal": (FREE, DEFAULT),
}
"""Endpoint -> charges that it may run with."""

PREFLIGHT = b"Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n"

DOTS = frozenset({".", ".."})


NEVER_ROUTED = ("other first characters", "absolute-form targets")
"""Spellings that some servers pass on as they are, so that no route matches."""

WITHOUT_ENDPOINT = {0, 101, 307, *range(400, 500), 501, 505}
"""Statuses of servers and of the router; 0: a closed connection. ``/state`` reports no endpoint either."""

MAX_SOCKET_TARGET = 8_000
"""Characters of a websocket's target. uvicorn with `websockets` never answers a longer line."""


def check(answer: RawAnswer, target: str) -> bool:
    """Check the charge of the endpoint that has answered; False if none has."""
    report = answer.report
    if "endpoint" not in report:
        assert "calls" in report or answer.status in WITHOUT_ENDPOINT, (target, answer)
        return False
    endpoint, path, cost = report["endpoint"], report["path"], report["cost"]
    # The catch-all routes of HTTP and websockets lead to endpoints of one name.
    name = "internal" if endpoint == "ws" and path.lstrip("/").startswith("internal") else endpoint
    assert cost in COSTS[name], (target, report)
    if cost == FREE:
        # What an upstream would resolve to another path must not be free.
        is_ambiguous = DOTS & set(path.split("/")) or "//" in path or "\n" in path
        assert not is_ambiguous, (target, report)
    return True


@pytest.fixture(params=cases(SERVERS), scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    running = Server(*request.param)
    yield running
    running.stop()


pytestmark = pytest.mark.server


@pytest.mark.parametrize("kind", SPELLINGS)
def test_spelled_path_runs_no_endpoint_without_its_charge(attack: Attack, server: Server, kind: str) -> None:
    targets = list(dict.fromkeys(spelled for path in PATHS for spelled in SPELLINGS[kind](path)))
    before = server.state()
    with attack(f"paths: {kind}", times=len(targets)):
        ran = sum(check(exchange(server.port, request(target)), target) for target in targets)
        after = server.state()
        assert after["calls"] - before["calls"] == ran
        # Each request that an endpoint has answered was counted once.
        assert after["counted"] - before["counted"] >= ran
        assert after["malformed"] == 0
    assert ran or kind in NEVER_ROUTED, "no spelling reaches an endpoint: the test shows nothing"


@pytest.mark.parametrize("kind", SPELLINGS)
def test_spelled_websocket_runs_no_endpoint_without_its_charge(
    attack: Attack, server: Server, kind: str
) -> None:
    targets = list(dict.fromkeys(spelled for path in SOCKETS for spelled in SPELLINGS[kind](path)))
    targets = [target for target in targets if len(target) <= MAX_SOCKET_TARGET]
    with attack(f"paths: websockets, {kind}", times=len(targets)):
        for target in targets:
            check(websocket_report(server.port, target), target)
        assert server.state()["malformed"] == 0


METHODS = {
    "HEAD at a policy for GET": ("HEAD", "/v1/read", b"", POLICY),
    "OPTIONS without the fields of a preflight": ("OPTIONS", "/gw/x", b"", DEFAULT),
    "OPTIONS with Origin alone": ("OPTIONS", "/gw/x", b"Origin: http://a\r\n", DEFAULT),
    "OPTIONS at a policy": ("OPTIONS", "/v1/generate", b"", POLICY),
    "an override field": ("POST", "/gw/x", b"X-HTTP-Method-Override: OPTIONS\r\n" + PREFLIGHT, DEFAULT),
    "a method of no standard": ("PURGE", "/gw/x", b"", DEFAULT),
    "OPTIONS in lower case": ("options", "/gw/x", b"", DEFAULT),
    "OPTIONS with a tail": ("OPTIONSX", "/gw/x", PREFLIGHT, DEFAULT),
}
"""Name -> method, target, fields, and the charge if an endpoint runs."""


@pytest.mark.parametrize("case", METHODS.values(), ids=METHODS)
def test_methods_run_no_endpoint_without_its_charge(
    attack: Attack, server: Server, case: tuple[str, str, bytes, float]
) -> None:
    method, target, fields, cost = case
    with attack("paths: methods"):
        before = server.state()
        exchange(server.port, request(target, method, fields))
        after = server.state()
        ran = after["calls"] - before["calls"]
        assert after["charged"] - before["charged"] == ran * cost
        # Servers reject methods that they do not know, or read them as upper case.
        assert ran or method not in {"GET", "HEAD", "POST", "OPTIONS"}


def test_preflight_is_free(attack: Attack, server: Server) -> None:
    with attack(
        "paths: a CORS preflight",
        degraded="free of all limits, since browsers send it without a key: answer it with a CORS middleware",
    ):
        assert exchange(server.port, request("/gw/x", "OPTIONS", PREFLIGHT)).report["cost"] == FREE


# Decoded, as servers pass it on.
ALPHABET = (
    *(
        "/",
        "/",
        "/",
        "//",
        ".",
        "..",
        "/..",
        "/.",
        "\n",
        "\r",
        "\0",
        ";",
        " ",
        "%",
        "%2f",
        "\\",
        "?",
        "#",
        "\x85",
    ),
    *(
        "v1",
        "generate",
        "read",
        "marked",
        "7",
        "sub",
        "costly",
        "free",
        "internal",
        "a",
        "gw",
        "x",
        "ws",
        "V1",
    ),
    *("/v1/generate", "/v1/read", "/marked/7", "/sub/costly", "/free", "/internal/a", "/gw/x", "/state"),
)


def mutated_path(rng: Random) -> str:
    """Insert up to three parts into a path of the service; sometimes join parts alone."""
    if rng.random() < 0.2:
        return "/" + "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 7)))
    path = rng.choice(PATHS)
    for _ in range(rng.randint(0, 3)):
        at = rng.choice([*range(len(path)), len(path), len(path), len(path)])
        path = path[:at] + rng.choice(ALPHABET) + path[at:]
    return path


def drawn_scope(path: str, rng: Random) -> Scope:
    """Draw a request for a path, sometimes below a root path of the server."""
    root = rng.choice(("", "", "", "/v1", "/internal", "/x"))
    return http_scope(root + path, rng.choice(("GET", "GET", "HEAD", "POST")), root_path=root)


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.untraced])]
)
def test_random_paths_run_no_endpoint_without_its_charge(attack: Attack, count: int) -> None:
    rng, ran = Random(7), 0
    with attack("paths: random texts, also below root_path", times=count):
        for _ in range(count):
            scope = drawn_scope(mutated_path(rng), rng)
            found = at_once(path_service.app, scope)
            ran += check(RawAnswer(found.status, found.body), f"{scope['root_path']} {scope['path']!a}")
    assert ran > count // 10
