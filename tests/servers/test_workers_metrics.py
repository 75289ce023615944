"""Several workers on a real server: their totals, and the recipe of docs/metrics.md for each of them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.servers import server as servers
from tests.servers.server import Server
from tests.servers.test_servers import UVICORN
from tests.store.polling import until

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORKERS = 2
PORTS = "range(9100, 9104)"
PATIENCE_S = 60.0
ANSWERS = """
@app.get("/state")
async def state() -> dict[str, int]:
    import os
    return {"process": os.getpid()}
"""
"""What tells that the server has started."""
TOGETHER = """
from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.observe import metrics_app
from fastapi import FastAPI

throttle = Throttle.from_env()
app = FastAPI()
app.add_middleware(ThrottleMiddleware, throttle=throttle)
app.mount("/metrics", metrics_app(throttle))
"""


def free_ports() -> range:
    """So many consecutive free ports."""
    while True:
        with contextlib.ExitStack() as open_now, contextlib.suppress(OSError, OverflowError):
            first = open_now.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for port in range(first + 1, first + WORKERS):
                open_now.enter_context(socket.create_server(("127.0.0.1", port)))
            return range(first, first + WORKERS)


@pytest.fixture
def ports() -> range:
    return free_ports()


@pytest.fixture
def server(tmp_path: Path, ports: range, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (recipe,) = [block.text for block in blocks("python") if "start_http_server" in block.text]
    assert recipe.count(PORTS) == 1
    (tmp_path / "printed.py").write_text(recipe.replace(PORTS, repr(ports)) + ANSWERS)
    monkeypatch.setitem(servers.ENVIRONMENT, "AUTOGLM_THROTTLE_GPU", "none")
    server = Server(*UVICORN, "--workers", str(WORKERS), "--app-dir", str(tmp_path), "printed:app")
    yield server
    server.stop()


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    (tmp_path / "together.py").write_text(TOGETHER + ANSWERS)
    for name, value in (("GPU", "none"), ("WORKERS", str(WORKERS)), ("EXEMPT_PATHS", "/state")):
        monkeypatch.setitem(servers.ENVIRONMENT, f"AUTOGLM_THROTTLE_{name}", value)
    server = Server(*UVICORN, "--workers", str(WORKERS), "--app-dir", str(tmp_path), "together:app")
    yield server
    server.stop()


def scraped(port: int, path: str = "/metrics") -> dict[str, float]:
    """The samples at this port; none while it is closed."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)) as connection:
        try:
            connection.request("GET", path)
            text = connection.getresponse().read().decode()
        except OSError:
            return {}
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_workers_report_themselves_and_combined(server: Server, ports: range) -> None:
    until(lambda: all(scraped(port) for port in ports), PATIENCE_S, "the pages of all workers")
    before = sum(map(total, map(scraped, ports)))
    for _ in range(40):
        server.get("/nothing")
    assert sum(map(total, map(scraped, ports))) == before + 40


def test_every_worker_reports_the_totals(together: Server) -> None:
    def totals() -> set[float]:
        return {total(scraped(together.port, "/metrics/")) for _ in range(8)}

    for _ in range(40):
        together.get("/nothing")
    until(lambda: totals() == {40.0}, PATIENCE_S, "the totals of all workers")
    processes = {together.state()["process"] for _ in range(40)}
    os.kill(processes.pop(), signal.SIGKILL)
    together.get("/nothing")
    # The one that is killed has shared its counts; those of the other, and of a new one, are added to them.
    until(lambda: totals() == {41.0}, PATIENCE_S, "the totals without the worker that was killed")


def total(samples: dict[str, float]) -> float:
    """Requests that were admitted."""
    return sum(
        value
        for name, value in samples.items()
        if name.startswith("autoglm_throttle_requests_total") and 'decision="admitted"' in name
    )
