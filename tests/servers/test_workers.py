"""Several workers, and a GPU driver that hangs for as long as the test lasts."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.server import Server, ask, fresh_key
from tests.servers.service import LIMIT
from tests.servers.test_servers import APP, EXACTLY, HYPERCORN, TIMES, UVICORN

pytestmark = pytest.mark.server

FAULTY = """
import sys
import uvicorn
from starlette.applications import Starlette
from autoglm_throttle.asgi import ThrottleMiddleware
app = Starlette()
app.add_middleware(ThrottleMiddleware)
uvicorn.run(app, port=int(sys.argv[1]))
"""
ROUNDS = 5
REQUESTS = 60
STALE_WITHIN_S = 4.0
"""Three seconds is when a sample counts as stale; the rest is for a busy machine."""

SLOWER_AT_MOST_S = 0.010
"""A request that waits for the driver waits for ever; the noise of a busy machine is a few milliseconds."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


@pytest.mark.parametrize("server", [(*UVICORN, "--workers", "2", APP)], indirect=True)
def test_each_of_two_workers_samples_and_limits(server: Server) -> None:
    seen: dict[int, list[int]] = {}
    deadline = time.monotonic() + 10.0
    while len(seen) < 2 and time.monotonic() < deadline:
        with contextlib.closing(server.connection()) as connection:
            state = _state(connection)
            if state["pid"] in seen:
                continue
            while state["telemetry"] != "fresh" and time.monotonic() < deadline:
                time.sleep(0.02)
                state = _state(connection)
            assert (state["telemetry"], state["sampler"]) == ("fresh", ["autoglm-throttle-gpu"])
            key = fresh_key()
            seen[state["pid"]] = [ask(connection, "/ok", key).status for _ in range(TIMES)]
    assert list(seen.values()) == [EXACTLY, EXACTLY], "user limits in memory hold for each worker"


def test_server_with_a_faulty_environment_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.server.ENVIRONMENT", {"AUTOGLM_THROTTLE_USER_LIMIT": "nonsense"})
    with pytest.raises(RuntimeError, match="AUTOGLM_THROTTLE_USER_LIMIT"):
        Server("-c", FAULTY, "{port}").stop()


@pytest.mark.parametrize(
    "server",
    [(*UVICORN, "--loop", "asyncio", APP), (*HYPERCORN, "trio", APP)],
    ids=["uvicorn", "trio"],
    indirect=True,
)
def test_hanging_driver_slows_no_request_and_shows_as_stale(server: Server) -> None:
    assert server.until("telemetry", "fresh") == "fresh"
    calm, hung = [], []
    for _ in range(ROUNDS):
        calm.append(_p99_s(server))
        server.get("/hang")
        hung.append(_p99_s(server))
        server.get("/release")
    server.get("/hang")
    started = time.monotonic()
    assert statistics.median(hung) < statistics.median(calm) + SLOWER_AT_MOST_S, (calm, hung)
    assert server.until("telemetry", "stale", STALE_WITHIN_S) == "stale"
    assert time.monotonic() - started > 1.0, "late comes before stale"
    assert [server.get("/ok", fresh_key()).status for _ in range(LIMIT)] == [200] * LIMIT
    server.get("/release")
    assert server.until("telemetry", "fresh") == "fresh"


def _p99_s(server: Server) -> float:
    durations = []
    with contextlib.closing(server.connection()) as connection:
        for _ in range(REQUESTS):
            started = time.perf_counter()
            assert ask(connection, "/ok", fresh_key()).status == 200
            durations.append(time.perf_counter() - started)
    return sorted(durations)[int(REQUESTS * 0.99) - 1]


def _state(connection: http.client.HTTPConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(connection, "/state").body)
    return found
