"""A real Prometheus, the services that it scrapes, and their load: parts of `benchmarks.alerts`."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from autoglm_throttle import BreakerSettings, Fallback, RoutePolicy, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.batcher import AdaptiveBatcher
from autoglm_throttle.observe import metrics_app
from autoglm_throttle.observe.dashboards import SCRAPE_S, rules_file, scrape_file, targets_file
from autoglm_throttle.testing import FakeGpu
from autoglm_throttle.testing.simulated import LlmSpec, SimulatedGpu, SimulatedGpuSpec, service
from tests.observe.scraping import EVERYTHING
from tests.store.server import free_port

START_S = 60.0
POLL_S = 0.2

SETTINGS: dict[str, Any] = {
    "fleet": True,
    "user_limit": "80/second",
    "tokens_limit": "1000000/minute",
    "inflight_max": 8,
    "slo_s": 2.0,
    "routes": [RoutePolicy("/work", name="work"), RoutePolicy("/embed/*", name="embed", priority="high")],
    "alert_z_rules": True,
}
"""Those of `create_app`, whose store comes from the environment."""

Job = tuple[str, str, Mapping[str, object] | None]
"""Method, path and JSON body of a request."""

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "stream": True}
MIX: tuple[Job, ...] = (
    *[("GET", "/work", None)] * 12,
    *[("GET", "/embed/a", None)] * 4,
    *[("GET", "/search", None)] * 2,
    ("GET", "/failure", None),
    ("POST", "/v1/chat/completions", CHAT),
)
"""A load that reaches each mechanism of `create_app`."""


def create_app() -> ThrottleMiddleware:
    """Build a service that uses each mechanism that has a panel; its GPUs and engine know all quantities."""
    gpu = FakeGpu(2, engines=1)
    for name, reading in EVERYTHING.items():
        setattr(gpu, name, reading)
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    throttle = Throttle(Settings.from_env(**SETTINGS), gpu=gpu)
    batcher = AdaptiveBatcher(_lengths, slo_s=0.5, throttle=throttle, name="embed")
    throttle.feature(
        "related",
        criticality="non_core",
        fallback=Fallback(static=[]),
        breaker=BreakerSettings(failures=3, open_s=5),
    )

    @throttle.guard("related")
    async def related(text: str) -> list[str]:
        raise ConnectionError(f"no answer for {text}")

    async def work(_: Request) -> Response:
        await asyncio.sleep(0.1)
        return PlainTextResponse("done")

    async def embed(request: Request) -> Response:
        return JSONResponse(await batcher.submit(request.path_params["text"]))

    async def search(_: Request) -> Response:
        return JSONResponse(await related("text"))

    async def failure(_: Request) -> Response:
        return PlainTextResponse("failed", 500)

    routes = [
        Route("/work", work),
        Route("/embed/{text}", embed),
        Route("/search", search),
        Route("/failure", failure),
        Mount("/metrics", metrics_app(throttle)),
        Route("/v1/chat/completions", service(SimulatedGpu(SimulatedGpuSpec(work=LlmSpec())))),
    ]
    return ThrottleMiddleware(Starlette(routes=routes), throttle=throttle)


def _lengths(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


@contextmanager
def process(command: Sequence[str], is_ready: Callable[[], object], **environment: str) -> Iterator[None]:
    """Run a process until the end of the block, once it is ready.

    Raises:
        RuntimeError: it has ended, or is not ready in time.
    """
    with subprocess.Popen(command, env=os.environ | environment) as child:
        try:
            wait_for(lambda: child.poll() is None and is_ready(), START_S, " ".join(command))
            yield
        finally:
            child.terminate()


def wait_for(condition: Callable[[], object], length_s: float, name: str) -> None:
    """Wait until a condition holds; a server that cannot be reached yet does not meet it.

    Raises:
        RuntimeError: it does not hold in time.
    """
    give_up_s = time.monotonic() + length_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"not in {length_s:g} s: {name}")
        time.sleep(POLL_S)


def _answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return bool(answer.status == 200)


@contextmanager
def served(app: str, *options: str, **environment: str) -> Iterator[int]:
    """Serve an app with uvicorn; yields the port."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "critical", *options]
    with process(command, lambda: _answers(f"http://127.0.0.1:{port}/metrics/"), **environment):
        yield port


class Prometheus:
    """The interface of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[float]:
        """Return the values of the series of an expression now."""
        text = urllib.parse.urlencode({"query": expression})
        found = self._read(f"query?{text}")["result"]
        return [float(series["value"][1]) for series in found]

    def rule_errors(self) -> list[str]:
        """Return the errors of the alert rules, and the rules that were not evaluated."""
        groups = self._read("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return [f"{rule['name']}: {rule}" for rule in rules if rule["health"] != "ok"]

    def _read(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=30.0) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


@contextmanager
def prometheus(program: str, folder: Path, port: int, scrape_s: int = SCRAPE_S) -> Iterator[Prometheus]:
    """Run Prometheus with the files of ``autoglm-throttle dashboards`` and one target."""
    (folder / "prometheus-rules.yml").write_text(rules_file(Settings()))
    configuration = scrape_file("benchmark").replace(f": {SCRAPE_S}s", f": {scrape_s}s")
    (folder / "prometheus.yml").write_text(configuration)
    (folder / "targets.json").write_text(targets_file("127.0.0.1", range(port, port + 1), "host"))
    own = free_port()
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
        "--log.level=error",
    ]
    url = f"http://127.0.0.1:{own}"
    with process(command, lambda: _answers(f"{url}/-/ready")):
        yield Prometheus(url)


def send(port: int, jobs: Sequence[Job], rate_rps: float, length_s: float, together: int = 1) -> Counter[str]:
    """Send requests at a rate, some of them together; returns the number of each status or error."""
    return asyncio.run(_send(f"http://127.0.0.1:{port}", jobs, rate_rps, length_s, together))


async def _send(
    url: str, jobs: Sequence[Job], rate_rps: float, length_s: float, together: int
) -> Counter[str]:
    statuses, loop = Counter[str](), asyncio.get_running_loop()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60.0, trust_env=False) as client:

        async def one(job: Job) -> None:
            method, path, body = job
            try:
                answer = await client.request(method, path, json=body)
                statuses[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1

        began_s = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(round(rate_rps * length_s)):
                due_s = began_s + number // together * together / rate_rps
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                group.create_task(one(jobs[number % len(jobs)]))
    return statuses


def has_value(values: Sequence[float]) -> bool:
    """Return whether there is a series with a value."""
    return any(not math.isnan(value) for value in values)
