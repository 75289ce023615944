"""Two workers of a real server and one real store: one limit, and answers in any state of the store."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import pytest

from tests.servers.server import Reply, Server, ask, fresh_key
from tests.servers.test_servers import GRANIAN, UVICORN
from tests.store.polling import until
from tests.store.server import RedisServer, newest

pytestmark = [pytest.mark.server, pytest.mark.slow]

APP = "tests.servers.sharing_service:app"
SERVERS = {
    "uvicorn": (*UVICORN, "--workers", "2", APP),
    "granian": (*GRANIAN, "asgi", "--workers", "2", APP),
}
LIMIT, WORKERS, EACH = 20, 2, 3
REQUESTS = 3 * LIMIT
WITHIN_S = 60.0
UP = "autoglm_throttle_redis_up"
SETTINGS = {
    "GPU": "none",
    "POLICY": "fixed",
    "RATE_MID_RPS": "1000000",
    "USER_LIMIT": f"{LIMIT}/minute",
    "WORKERS": str(WORKERS),
    "EXEMPT_PATHS": "/state,/health,/metrics",
    "METRICS": "prometheus",
    "REDIS_DEADLINE_S": "10",
}
"""The deadline is for a busy machine: a lost connection does not wait for it."""


class Site:
    """A server with two workers, its store, and kept connections to each worker."""

    def __init__(self, store: RedisServer, command: tuple[str, ...], **settings: str) -> None:
        self.store = store
        ours = {"REDIS_URL": store.url, **SETTINGS, **settings}
        environment = {f"AUTOGLM_THROTTLE_{name}": text for name, text in ours.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.servers.server.ENVIRONMENT", environment)
            self.server = Server(*command)

    @contextlib.contextmanager
    def workers(self) -> Iterator[list[list[http.client.HTTPConnection]]]:
        """Connections to each worker."""
        with contextlib.ExitStack() as stack:
            found: dict[int, list[http.client.HTTPConnection]] = {}
            deadline = time.monotonic() + WITHIN_S
            while len(found) < WORKERS or min(map(len, found.values())) < EACH:
                assert time.monotonic() < deadline, "the system gives each worker some connections"
                connection = stack.enter_context(contextlib.closing(self.server.connection()))
                found.setdefault(_state(connection)["pid"], []).append(connection)
            yield [connections[:EACH] for connections in found.values()]

    def comes(self, store: str) -> None:
        """Ask every worker until it sees the store so."""
        with self.workers() as workers:
            until(lambda: all(_seen(connections[0]) == store for connections in workers), WITHIN_S, store)


def _seen(connection: http.client.HTTPConnection) -> str:
    """The state of the store after one more request."""
    ask(connection, "/ok", fresh_key())
    return str(_state(connection)["store"])


def _state(connection: http.client.HTTPConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(connection, "/state").body)
    return found


@pytest.fixture(scope="module", params=SERVERS.values(), ids=list(SERVERS))
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with RedisServer(newest()) as store:
        site = Site(store, request.param)
        yield site
        site.server.stop()


@pytest.fixture
def server(site: Site) -> Server:
    """For the report of a test that fails."""
    return site.server


def test_the_workers_admit_exactly_one_limit_together(site: Site, server: Server) -> None:
    site.comes("up")
    key = fresh_key()
    with site.workers() as workers, ThreadPoolExecutor(WORKERS * EACH) as pool:
        connections = [connection for each in workers for connection in each]
        times = REQUESTS // len(connections)

        def several(connection: http.client.HTTPConnection) -> list[Reply]:
            return [ask(connection, "/ok", key) for _ in range(times)]

        by_connection = list(pool.map(several, connections))
    replies = [reply for replies in by_connection for reply in replies]
    admitted = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status == 429]
    assert (len(admitted), len(refused)) == (LIMIT, REQUESTS - LIMIT)
    assert sorted(map(_left, admitted)) == list(range(LIMIT)), "each tells what is left after it"
    assert {_left(reply) for reply in refused} == {0}
    assert {reply.headers["ratelimit-policy"] for reply in replies} == {f'"user-60s";q={LIMIT};w=60'}
    assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in refused)


def _left(reply: Reply) -> int:
    match = re.fullmatch(r'"user-60s";r=(\d+);t=(\d+)', reply.headers["ratelimit"])
    assert match is not None, reply.headers
    assert 0 < int(match[2]) <= 60
    return int(match[1])


def test_a_store_that_is_killed_and_comes_back_under_traffic(site: Site, server: Server) -> None:
    site.comes("up")
    with Traffic(server) as traffic:
        traffic.more()
        assert _up(site) == {f"{UP} 1.0"}
        site.store.kill()
        site.comes("down")
        assert _up(site) == {f"{UP} 0.0"}
        traffic.more()
        key = fresh_key()
        with site.workers() as workers:
            shares = [[ask(each[0], "/ok", key).status for _ in range(LIMIT)] for each in workers]
        assert shares == [[200] * (LIMIT // WORKERS) + [429] * (LIMIT // WORKERS)] * WORKERS
        site.store.restart()
        site.comes("up")
        assert _up(site) == {f"{UP} 1.0"}
        traffic.more()
        shared = fresh_key()
        with site.workers() as workers:
            seen = [_left(ask(each[0], "/ok", shared)) for each in workers]
        assert seen == [LIMIT - 1, LIMIT - 2]
    assert set(traffic.statuses["/ok"]) == {200, 429}
    assert set(traffic.statuses["/health"]) == {200}


def _up(site: Site) -> set[str]:
    """The metrics of all workers."""
    with site.workers() as workers:
        pages = [ask(connection, "/metrics").body.decode() for connection, *_ in workers]
    return {line for page in pages for line in page.splitlines() if line.startswith(UP)}


class Traffic:
    """Requests of two callers and health checks, each on a kept connection, until the end of the block."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self.statuses: dict[str, list[int]] = {"/ok": [], "/health": []}

    def __enter__(self) -> Self:
        paths = ("/ok", "/ok", "/ok", "/health")
        self._flows = [self._pool.submit(self._flow, path) for path in paths]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for flow in self._flows:
            flow.result()

    def more(self, count: int = 30) -> None:
        """Return when so many more of each have been answered."""
        wanted = {path: len(statuses) + count for path, statuses in self.statuses.items()}
        until(
            lambda: all(len(self.statuses[path]) >= most for path, most in wanted.items()), WITHIN_S, "more"
        )

    def _flow(self, path: str) -> None:
        key, asked = fresh_key(), 0
        with contextlib.closing(self._server.connection()) as connection:
            while not self._over.is_set():
                asked += 1
                if asked % (2 * LIMIT) == 0:
                    key = fresh_key()
                self.statuses[path].append(ask(connection, path, key).status)


@pytest.fixture
def strict() -> Iterator[Site]:
    """A service that rejects requests it cannot count."""
    with RedisServer(newest()) as store:
        site = Site(store, SERVERS["uvicorn"], REDIS_ON_ERROR="deny")
        yield site
        site.server.stop()


def test_deny_mode_rejects_all_during_store_outage(strict: Site) -> None:
    server = strict.server
    strict.comes("up")
    assert server.get("/ok", fresh_key()).status == 200
    strict.store.kill()
    strict.comes("down")
    reply = server.get("/ok", fresh_key())
    assert (reply.status, reply.headers["content-type"]) == (503, "application/problem+json")
    assert int(reply.headers["retry-after"]) >= 1
    assert json.loads(reply.body)["type"].endswith("temporary-reduced-capacity")
    assert server.get("/health").status == 200
    strict.store.restart()
    strict.comes("up")
    assert server.get("/ok", fresh_key()).status == 200
