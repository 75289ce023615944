"""The same small ASGI app behind the throttle and behind each peer, with the limits of its users on Redis.

`limits` and asgi-ratelimit use an enlarged pool of redis-py; slowapi uses its own synchronous client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.types import UserLimit
from benchmarks import asgi_rows
from benchmarks.asgi_rows import App, Scope, bare, receive
from benchmarks.shared import ours as shared
from benchmarks.shared import peers
from benchmarks.shared.bench import RedisBench

TASKS = 64
WARM = 4
"""Factor of the usual warm-up: pools grow for a while."""

LIMIT = 1000
"""Requests a minute of each of 200 users: none is rejected, and each has an exact log."""

AppOpened = AbstractAsyncContextManager[App]


@contextlib.asynccontextmanager
async def alone(url: str, app: App = bare) -> AsyncGenerator[App]:  # noqa: ARG001
    """Provide the bare app."""
    yield app


@contextlib.asynccontextmanager
async def ours(url: str, app: App = bare, limit: int = LIMIT) -> AsyncGenerator[App]:
    """Provide the app behind the whole middleware, its user limit on Redis."""
    async with shared.whole(url, UserLimit("", limit, 60)) as throttle:
        yield ThrottleMiddleware(app, throttle=throttle)


@contextlib.asynccontextmanager
async def limits(
    url: str, app: App = bare, limit: int = LIMIT, *, strategy: str, pool: str = "raised"
) -> AsyncGenerator[App]:
    """Provide a strategy of ``limits`` in a minimal wrapper: key and rejection, no header fields."""
    async with peers.limits(url, UserLimit("", limit, 60), strategy=strategy, pool=pool) as hit:

        async def middleware(scope: Scope, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or await hit(scope["client"][0]):
                await app(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 429, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        yield middleware


@contextlib.asynccontextmanager
async def asgi_ratelimit(url: str, app: App = bare, limit: int = LIMIT) -> AsyncGenerator[App]:
    """Provide asgi-ratelimit with its Redis backend."""
    from ratelimit.backends.redis import RedisBackend

    async with peers.connected(url, "raised") as client:
        yield asgi_rows.asgi_ratelimit(app, limit, backend=RedisBackend(client))


@contextlib.asynccontextmanager
async def slowapi(url: str) -> AsyncGenerator[App]:
    """Provide the ASGI middleware of slowapi around a Starlette app; its storage blocks the loop."""
    yield asgi_rows.slowapi(LIMIT, url)


APPS: dict[str, Callable[[str], AppOpened]] = {
    "bare app": alone,
    "autoglm_throttle": ours,
    "asgi-ratelimit": asgi_ratelimit,
    "limits-fixed": partial(limits, strategy="FixedWindow"),
    "limits-moving": partial(limits, strategy="MovingWindow"),
    "slowapi": slowapi,
}


def rate(bench: RedisBench, make: Callable[[str], AppOpened], failed: Counter[str]) -> float:
    """Measure the requests per second of concurrent tasks, all within the limits of their users."""

    async def run() -> float:
        bench.gauge.empty()
        scopes = itertools.cycle(asgi_rows.scopes()[::-1])
        async with make(bench.server.url) as app:
            await _drive(app, scopes, WARM * bench.scale.warm_s, Counter())
            seen: Counter[str] = Counter()
            begun = time.perf_counter()
            await _drive(app, scopes, bench.scale.row_s, seen)
            spent = time.perf_counter() - begun
        answered = seen.pop("200", 0)
        failed.update(seen)
        return answered / spent

    return asyncio.run(run())


async def _drive(app: App, scopes: Any, seconds: float, seen: Counter[str]) -> None:
    until = time.perf_counter() + seconds

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen[str(message["status"])] += 1

    async def one() -> None:
        while time.perf_counter() < until:
            try:
                await app(dict(next(scopes)), receive, send)
            except Exception as error:
                seen[type(error).__name__] += 1
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(TASKS)))
