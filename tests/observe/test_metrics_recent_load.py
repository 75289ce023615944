"""Metrics of the last minute beside what the clients of a load have measured, in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.observe.recent_metrics import WINDOW_S
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from tests.observe.scraping import value

STEP_S, EVENTS, BETWEEN_S, FAILURES = 5.0, 8, 0.02, 0.03


@dataclass
class Clients:
    """What clients see of a service that streams an answer to every fourth of them."""

    rng: random.Random
    ends: list[tuple[float, float, int]] = field(default_factory=list)
    """End of a request, its duration and its status."""
    events: list[float] = field(default_factory=list)

    async def app(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        status = 500 if self.rng.random() < FAILURES else 200
        streams = scope["path"] == "/stream"
        await asyncio.sleep(0.08 * math.exp(self.rng.gauss(0.0, 0.5)))
        kind = b"text/event-stream" if streams else b"text/plain"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for _ in range(EVENTS if streams else 0):
            await send({"type": "http.response.body", "body": b"data: token\n\n", "more_body": True})
            await asyncio.sleep(BETWEEN_S)
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, app: Any, number: int) -> None:
        loop = asyncio.get_running_loop()
        began_s, status = loop.time(), 0

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            if b"data:" in message.get("body", b""):
                self.events.append(loop.time())

        path = "/stream" if number % 4 == 0 else "/answer"
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        await app(scope, _nothing, send)
        self.ends.append((loop.time(), loop.time() - began_s, status))


async def _nothing() -> dict[str, Any]:
    await asyncio.get_running_loop().create_future()
    return {}


def quantile(durations: list[float], share: float) -> float:
    return sorted(durations)[math.ceil(share * len(durations)) - 1]


def width_at(duration_s: float) -> float:
    """Return the width of the bucket that holds a duration."""
    return next(end - start for start, end in pairwise((0.0, *DURATION_BUCKETS_S)) if duration_s <= end)


@pytest.mark.slow
@pytest.mark.parametrize("rate_rps", [50.0, 100.0, 300.0])
def test_gauges_agree_with_the_clients(rate_rps: float) -> None:
    loop = VirtualLoop()
    clients = Clients(random.Random(1))
    settings = Settings(gpu="none", policy="fixed", rate_mid_rps=1e6)
    throttle = Throttle(settings, sampling="manual", clock=loop.time)
    timer = history_timer(throttle)
    app = ThrottleMiddleware(clients.app, throttle=throttle)

    async def run() -> float:
        async def steps() -> float:
            for _ in range(14):
                timer.step()
                await asyncio.sleep(STEP_S)
            return loop.time() - STEP_S

        async def load() -> None:
            for number in range(round(rate_rps * 14 * STEP_S)):
                tasks.add(asyncio.ensure_future(clients.ask(app, number)))
                await asyncio.sleep(clients.rng.expovariate(rate_rps))

        tasks: set[asyncio.Future[None]] = set()
        sending = asyncio.ensure_future(load())
        ended_s = await steps()
        sending.cancel()
        await asyncio.wait(tasks)
        return ended_s

    ended_s = loop.run_until_complete(run())
    seen = [row for row in clients.ends if ended_s - WINDOW_S < row[0] <= ended_s]
    durations = [duration_s for _, duration_s, _ in seen]
    assert len(seen) > 0.9 * WINDOW_S * rate_rps
    for percentile, share in (("50", 0.5), ("95", 0.95)):
        expected = quantile(durations, share)
        found = value(throttle, "latency_seconds", priority="mid", percentile=percentile)
        assert found == pytest.approx(expected, abs=width_at(expected))
    failures = sum(status == 500 for _, _, status in seen)
    assert value(throttle, "error_ratio", priority="mid") == pytest.approx(failures / len(seen))
    events = sum(ended_s - WINDOW_S < at_s <= ended_s for at_s in clients.events)
    found = value(throttle, "tokens_per_second", source="streams")
    assert found == pytest.approx(events / WINDOW_S, rel=0.02)
    loop.close()
