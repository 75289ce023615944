"""A service with a live page on a port of its own, and a load that shows every section."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from autoglm_throttle import Demand, Permit, Priority, ThrottleMiddleware
from autoglm_throttle.observe import status_app
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import FakeGpu, ManualThrottle, throttle_for_tests

HOSTILE = "<script>alert(1)</script>"
"""A guard's name, which must stay text."""


class ServedPage:
    """The page of a throttle whose clock and steps the test moves."""

    def __init__(self, url: str, throttle: ManualThrottle) -> None:
        self.url = url
        self.throttle = throttle

    def step(self, count: int = 1, requests: int = 8, takes_s: float = 0.1) -> None:
        """Serve some requests in each step; one user is above its limit."""
        throttle = self.throttle
        for _ in range(count):
            for number in range(requests):
                user = "greedy" if number % 2 else f"user {number}"
                verdict = throttle.try_admit(Demand(Priority(number % 3), user=user))
                throttle.clock.advance(takes_s)
                if isinstance(verdict, Permit):
                    verdict.settle()
            throttle.clock.advance(5.0 - throttle.clock() % 5.0)
            throttle.tick()
            history_timer(throttle).step()

    def document(self) -> dict[str, object]:
        """Read the document of the page."""
        with urllib.request.urlopen(f"{self.url}data.json", timeout=20.0) as answer:
            return dict(json.load(answer))


def busy_throttle() -> ManualThrottle:
    """Make a throttle with two GPUs, an engine and a guard."""
    gpu = FakeGpu(2, engines=1)
    throttle = throttle_for_tests(gpu=gpu, user_limit="100/day", policy="adaptive", slo_s=1.0)
    gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 88.0, 300.0, 700.0
    gpu.set(1, utilization_pct=62.0)
    gpu.kv_used_ratio, gpu.queued, gpu.running = 0.5, 3, 8
    with throttle.guard(HOSTILE):
        pass
    return throttle


@contextmanager
def served_page() -> Iterator[ServedPage]:
    """Serve a page with a few steps behind it."""
    throttle = busy_throttle()
    app = ThrottleMiddleware(Starlette(routes=[Mount("/throttle", status_app(throttle))]), throttle=throttle)
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    pause = threading.Event()
    while not server.started:
        assert thread.is_alive()
        pause.wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    served = ServedPage(f"http://127.0.0.1:{port}/throttle/", throttle)
    for number in range(24):  # fills cells of the heat maps
        throttle.gpu.set(0, utilization_pct=4.0 * number)
        served.step(requests=12, takes_s=0.02 * (1 + number % 6))
    throttle.gpu.set(0, utilization_pct=88.0)
    served.step(12, requests=60)
    try:
        yield served
    finally:
        server.should_exit = True
        thread.join(10.0)
