"""Apps of `benchmarks.serve`, one process each: ``uvicorn benchmarks.served:fastapi_ours``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from autoglm_throttle import Caller, Settings, Throttle, ThrottleMiddleware
from benchmarks import asgi_rows
from benchmarks.instructions_peers import FIELDS, build
from benchmarks.overloaded import with_cpu_time

LIMIT = 1_000_000
"""Requests a minute of the one address of the benchmark, which stays below it."""

KEY_HEADER = b"x-api-key"
KEY_LIMIT = "100/second"
"""Limit of each of the callers with a key: their windows hold some requests, and others expire."""

REDIS_URL = os.environ.get("BENCHMARK_REDIS_URL", "")
"""Address of Redis; without it there are no rows of shared limits."""

POOL = 2048

BODY = b'{"label":"cat","score":0.98}'

logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())


class Label(BaseModel):
    """Response of the FastAPI app; the raw app sends the same bytes."""

    label: str
    score: float


async def raw_app(scope: Any, receive: Any, send: Any) -> None:
    """Serve one small response."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


def fastapi_app() -> FastAPI:
    """Build the app with FastAPI and a response model."""
    app = FastAPI()

    @app.get("/predict")
    async def predict() -> Label:
        return Label(label="cat", score=0.98)

    return app


def ours(app: asgi_rows.App, **settings: Any) -> asgi_rows.App:
    """Wrap an app in the whole throttle."""
    return asgi_rows.ours(app, **{"user_limit": f"{LIMIT}/minute"} | settings)


def identified(app: asgi_rows.App, **settings: Any) -> asgi_rows.App:
    """Wrap an app in the throttle with ``identify=``, as behind an authentication of its own."""
    chosen: dict[str, Any] = {"user_limit": KEY_LIMIT, "rate_mid_rps": 1e6, "gpu": "none"} | settings

    def identify(scope: Any) -> Caller | None:
        for name, value in scope["headers"]:
            if name == KEY_HEADER:
                return Caller(value.decode(), verified=True)
        return None

    return ThrottleMiddleware(app, throttle=Throttle(Settings(**chosen)), identify=identify)


def by_key(app: asgi_rows.App) -> asgi_rows.App:
    """Wrap an app in the throttle with a key header; their common address has no limit."""
    return ours(app, user_limit=KEY_LIMIT, identity="header:x-api-key", address_factor=1e6)


def redis_limits(app: asgi_rows.App) -> asgi_rows.App:
    """Wrap an app in the moving window of ``limits`` on Redis, with an enlarged pool and minimal code."""
    from limits import parse
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    storage = RedisStorage(f"async+{REDIS_URL}", implementation="redispy", max_connections=POOL)
    limiter, item = MovingWindowRateLimiter(storage), parse(f"{LIMIT}/minute")

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or await limiter.hit(item, scope["client"][0]):
            await app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return middleware


def redis_floor(app: asgi_rows.App) -> asgi_rows.App:
    """Wrap an app in the store check alone: no rates, no concurrency limit, no header fields."""
    from pydantic import SecretStr

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.store.protocol import StoreCharge
    from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
    from autoglm_throttle.types import UserLimit

    window = RedisUserLimitStore(
        StoreSettings(redis_url=SecretStr(REDIS_URL), service="floor", redis_partitions=1)
    )
    charge = StoreCharge("user", (UserLimit("user-60s", LIMIT, 60),), "0123456789abcdef", 1)
    check = window.protocol.build_check((charge,))

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await window.charge(check)
        await app(scope, receive, send)

    return middleware


WRAPPERS: dict[str, Callable[[asgi_rows.App], asgi_rows.App]] = {
    "bare": lambda app: app,
    "ours": ours,
    "identify": identified,
    "key": by_key,
    "ratelimit": partial(build, "asgi-ratelimit", limit=LIMIT),
    "ratelimitfields": partial(build, "asgi-ratelimit" + FIELDS, limit=LIMIT),
    "limits": partial(build, "limits-fixed", limit=LIMIT),
    "limitsfields": partial(build, "limits-fixed" + FIELDS, limit=LIMIT),
    "refused": partial(ours, user_limit="1/minute"),
    "ratelimitrefused": partial(build, "asgi-ratelimit", limit=1),
    "redis": partial(ours, redis_url=REDIS_URL),
    "redisidentify": partial(identified, redis_url=REDIS_URL),
    "redisfloor": redis_floor,
    "redislimits": redis_limits,
}
"""Row -> middleware."""


def __getattr__(name: str) -> asgi_rows.App:
    """Build the app of a row, such as ``asgi_ours``."""
    app, _, row = name.partition("_")
    if row not in WRAPPERS:
        raise AttributeError(name)
    return with_cpu_time(WRAPPERS[row](raw_app if app == "asgi" else fastapi_app()))
