"""Four workers, each with its own concurrency limiter, share one GPU at three times its capacity."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.types import Priority
from benchmarks.goodput import GoodputObserver
from examples.demo.process import DemoProcess
from tests.servers.server import Server, ask
from tests.servers.test_servers import UVICORN

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

WORKERS = 4
CAPACITY_RPS = 100.0
OVERLOAD = 3.0
SLO_S = 2.0
WARM_S, WINDOW_S = 2.5, 3.0
"""Five periods of the gate, and 300 completions."""

HIGH_AT_LEAST = 0.5
"""The class is a third of what the GPU can do. Order is kept inside each worker, and none knows what share of
the high class the kernel has given to the others: 0.88 to 1 has been seen."""

RATES_RPS = {"high": 1000.0, "mid": 500.0, "low": 2000.0}
"""Above what is asked for: the gates decide, not the ceilings."""


@pytest.fixture(scope="module")
def gpu() -> Iterator[DemoProcess]:
    with DemoProcess("tests.servers.modelled_gpu", {"capacity_rps": CAPACITY_RPS}) as child:
        yield child


@pytest.fixture
def environment(gpu: DemoProcess, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """That of a service whose operator has said what it is, without the number of workers."""
    ours: dict[str, Any] = {
        "POLICY": "adaptive",
        "GPU": "none",
        "SLO_S": SLO_S,
        "PRIORITY_HEADER_TRUST": "any",
        "EXEMPT_PATHS": "/state",
        **{f"RATE_{name.upper()}_RPS": rate for name, rate in RATES_RPS.items()},
    }
    settings = {f"AUTOGLM_THROTTLE_{name}": str(value) for name, value in ours.items()}
    settings["SHARED_PORT"] = str(gpu.port)
    monkeypatch.setattr("tests.servers.server.ENVIRONMENT", settings)
    return settings


def started(workers: int, environment: dict[str, str]) -> Server:
    """A server whose workers all listen."""
    environment["AUTOGLM_THROTTLE_WORKERS"] = str(workers)
    server = Server(*UVICORN, "--workers", str(workers), "tests.servers.front_service:app")
    deadline = time.monotonic() + 60.0
    while server.output.count("Application startup complete") < workers:
        if time.monotonic() > deadline:
            server.stop()
            pytest.fail("not all workers have started")
        time.sleep(0.02)
    return server


def overload(port: int, seed: int) -> GoodputObserver:
    """Ask for too much, and count what is answered in time.

    Connections are opened as they are needed: a worker of uvicorn accepts all that wait, so that of a burst
    of new connections one worker would get nearly all.
    """
    seconds = WARM_S + WINDOW_S
    made = make_plan(
        LoadShape.parse(f"fixed:{OVERLOAD * CAPACITY_RPS}:{seconds}"), Arrivals.POISSON, PriorityMix(), seed
    )
    observed = GoodputObserver(made, SLO_S, WARM_S, seconds)
    options = ClientOptions(connections=WORKERS, more_connections=600, timeout_s=SLO_S, drain_s=SLO_S)
    target = TargetUrl(port=port)

    async def run() -> None:
        result = await OpenLoopSender(RequestSource(made), target, options, observed.note).run()
        assert result.balanced

    asyncio.run(run())
    return observed


def states(server: Server) -> dict[int, dict[str, Any]]:
    """States of the workers that accept a connection when many are opened."""
    found: dict[int, dict[str, Any]] = {}
    for _ in range(40):
        with closing(server.connection()) as connection:
            told = json.loads(ask(connection, "/state").body)
            found[told["pid"]] = told
    return found


def in_time(observed: GoodputObserver) -> dict[Priority, float]:
    return {priority: counts.in_time / counts.planned for priority, counts in observed.classes.items()}


def test_four_limiters_together_match_one(environment: dict[str, str]) -> None:
    alone = started(1, environment)
    try:
        one = overload(alone.port, seed=1)
    finally:
        alone.stop()
    together = started(WORKERS, environment)
    try:
        four = overload(together.port, seed=1)
        workers = states(together)
    finally:
        together.stop()
    rates = [rate / WORKERS for rate in RATES_RPS.values()]
    assert [worker["rates"] for worker in workers.values()] == [rates] * len(workers)
    assert four.completed_rps() >= 0.6 * one.completed_rps() > 0.0, (
        one.completed_rps(),
        four.completed_rps(),
    )
    share = in_time(four)
    assert share[Priority.HIGH] >= HIGH_AT_LEAST, share
    assert share[Priority.HIGH] > share[Priority.MID] > share[Priority.LOW], share
