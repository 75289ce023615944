"""Several workers: each has a throttle of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.server import Server, ask, fresh_key
from tests.servers.test_servers import APP, EXACTLY, TIMES, UVICORN

pytestmark = [pytest.mark.server, pytest.mark.slow]

FAULTY = """
import sys
import uvicorn
from starlette.applications import Starlette
from autoglm_throttle.asgi import ThrottleMiddleware
app = Starlette()
app.add_middleware(ThrottleMiddleware)
uvicorn.run(app, port=int(sys.argv[1]))
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


@pytest.mark.parametrize("server", [(*UVICORN, "--workers", "2", APP)], indirect=True)
def test_each_of_two_workers_samples_and_limits(server: Server) -> None:
    seen: dict[int, list[int]] = {}
    deadline = time.monotonic() + 60.0
    while len(seen) < 2 and time.monotonic() < deadline:
        with contextlib.closing(server.connection()) as connection:
            state = _state(connection)
            if state["pid"] in seen:
                continue
            while state["telemetry"] != "fresh" and time.monotonic() < deadline:
                time.sleep(0.02)
                state = _state(connection)
            assert (state["telemetry"], state["sampler"]) == ("fresh", ["autoglm-throttle-gpu-fake"])
            key = fresh_key()
            seen[state["pid"]] = [ask(connection, "/ok", key).status for _ in range(TIMES)]
    assert list(seen.values()) == [EXACTLY, EXACTLY], "user limits in memory hold for each worker"


def test_server_with_a_faulty_environment_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.server.ENVIRONMENT", {"AUTOGLM_THROTTLE_USER_LIMIT": "nonsense"})
    with pytest.raises(RuntimeError, match="AUTOGLM_THROTTLE_USER_LIMIT"):
        Server("-c", FAULTY, "{port}").stop()


def _state(connection: http.client.HTTPConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(connection, "/state").body)
    return found
