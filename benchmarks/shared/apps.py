"""The same small ASGI app behind us and behind each peer, with the limits of its users on Redis.

Of `limits` and asgi-ratelimit with redis-py's pool enlarged; slowapi with its own synchronous client.
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
from benchmarks.shared import rivals
from benchmarks.shared.lab import Lab

TASKS = 64
WARM = 4
"""Times the usual: pools take a while to be as large as they get."""

LIMIT = 1000
"""Requests a minute of each of 200 users: nobody is refused, and each is kept as an exact log."""

AppOpened = AbstractAsyncContextManager[App]


@contextlib.asynccontextmanager
async def alone(url: str, app: App = bare) -> AsyncGenerator[App]:  # noqa: ARG001
    """The app itself."""
    yield app


@contextlib.asynccontextmanager
async def ours(url: str, app: App = bare, limit: int = LIMIT) -> AsyncGenerator[App]:
    """The whole chain, its user limit on Redis."""
    async with shared.whole(url, UserLimit("", limit, 60)) as throttle:
        yield ThrottleMiddleware(app, throttle=throttle)


@contextlib.asynccontextmanager
async def limits(
    url: str, app: App = bare, limit: int = LIMIT, *, strategy: str, pool: str = "raised"
) -> AsyncGenerator[App]:
    """A strategy of ``limits`` in a wrapper as bare as possible: key and rejection, no header fields."""
    async with rivals.limits(url, UserLimit("", limit, 60), strategy=strategy, pool=pool) as hit:

        async def middleware(scope: Scope, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or await hit(scope["client"][0]):
                await app(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": 429, "headers": []})
                await send({"type": "http.response.body", "body": b""})

        yield middleware


@contextlib.asynccontextmanager
async def asgi_ratelimit(url: str, app: App = bare, limit: int = LIMIT) -> AsyncGenerator[App]:
    """asgi-ratelimit with its Redis backend."""
    from ratelimit.backends.redis import RedisBackend

    async with rivals.connected(url, "raised") as client:
        yield asgi_rows.asgi_ratelimit(app, limit, backend=RedisBackend(client))


@contextlib.asynccontextmanager
async def slowapi(url: str) -> AsyncGenerator[App]:
    """slowapi's pure ASGI middleware round a Starlette app; its storage blocks the loop."""
    yield asgi_rows.slowapi(LIMIT, url)


APPS: dict[str, Callable[[str], AppOpened]] = {
    "bare app": alone,
    "autoglm_throttle": ours,
    "asgi-ratelimit": asgi_ratelimit,
    "limits-fixed": partial(limits, strategy="FixedWindow"),
    "limits-moving": partial(limits, strategy="MovingWindow"),
    "slowapi": slowapi,
}


def rate(lab: Lab, make: Callable[[str], AppOpened], failed: Counter[str]) -> float:
    """Requests a second that so many tasks get answered, all of them within their users' limits."""

    async def run() -> float:
        lab.gauge.empty()
        scopes = itertools.cycle(asgi_rows.scopes()[::-1])
        async with make(lab.server.url) as app:
            await _drive(app, scopes, WARM * lab.scale.warm_s, Counter())
            seen: Counter[str] = Counter()
            begun = time.perf_counter()
            await _drive(app, scopes, lab.scale.row_s, seen)
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
