"""A GPU driver that hangs for as long as the test lasts, under a server that goes on serving."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from tests.servers.server import ANSWER_S, Server, ask, fresh_key
from tests.servers.service import LIMIT
from tests.servers.test_servers import APP, HYPERCORN, UVICORN

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

REQUESTS = 60

STALE_AFTER_S = 3.0
"""Three intervals, but at least this; an interval is 0.2 s here."""

EXIT_WITHIN_S = 60.0
"""The driver hangs for longer."""

THREAD = ["autoglm-throttle-gpu-fake"]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(*request.param)
    yield server
    server.stop()


every_loop = pytest.mark.parametrize(
    "server",
    [(*UVICORN, "--loop", "asyncio", APP), (*HYPERCORN, "trio", APP)],
    ids=["uvicorn", "trio"],
    indirect=True,
)


@every_loop
def test_hanging_driver_slows_no_request(server: Server) -> None:
    assert server.until("telemetry", "fresh") == "fresh"
    server.get("/hang")
    assert server.until("telemetry", "late") == "late"
    with contextlib.closing(server.connection()) as connection:  # who waits for the driver, waits for ever
        assert [ask(connection, "/ok", fresh_key()).status for _ in range(REQUESTS)] == [200] * REQUESTS
    server.get("/release")
    assert server.until("telemetry", "fresh") == "fresh"


@every_loop
def test_hanging_driver_shows_as_stale_and_leaves_one_thread(server: Server) -> None:
    assert server.until("telemetry", "fresh") == "fresh"
    server.get("/hang")
    deadline = time.monotonic() + ANSWER_S
    seen: list[str] = []
    while not seen or (seen[-1] != "stale" and time.monotonic() < deadline):
        state = server.state()
        seen.append(state["telemetry"])
        assert (seen[-1] == "stale") is (state["age_s"] > STALE_AFTER_S), state
        time.sleep(0.02)
    assert set(seen) >= {"late", "stale"}
    assert [server.get("/ok", fresh_key()).status for _ in range(LIMIT)] == [200] * LIMIT
    assert server.get("/restart").status == 200
    assert server.state()["sampler"] == THREAD, "never a second one beside a hung read"
    server.get("/release")
    assert server.until("telemetry", "fresh") == "fresh"
    assert server.state()["sampler"] == THREAD


@pytest.mark.parametrize("server", [(*UVICORN, APP)], ids=["uvicorn"], indirect=True)
def test_hanging_driver_does_not_delay_the_exit(server: Server) -> None:
    assert server.until("telemetry", "fresh") == "fresh"
    server.get("/hang")
    assert server.until("telemetry", "late") == "late"
    took_s, status = server.end(EXIT_WITHIN_S)
    assert status in {0, -signal.SIGTERM}, (took_s, status)
