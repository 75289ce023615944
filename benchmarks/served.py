"""Apps of `benchmarks.serve`, one process each: ``uvicorn benchmarks.served:fastapi_ours``."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from benchmarks import asgi_rows

LIMIT = 1_000_000
"""Requests a minute; the one client of the benchmark stays below it."""

REDIS_URL = os.environ.get("BENCHMARK_REDIS_URL", "")
"""Address of Redis; without it there are no rows of shared limits."""

POOL = 2048

BODY = b'{"label":"cat","score":0.98}'

logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())


class Label(BaseModel):
    """Response of the FastAPI app; the raw app sends the same bytes."""

    label: str
    score: float


async def asgi_bare(scope: Any, receive: Any, send: Any) -> None:
    """Serve /v1/predict at once, and /cpu with the CPU seconds of this process."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body = b"%.6f" % time.process_time() if scope["path"] == "/cpu" else BODY
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def fastapi_app() -> FastAPI:
    """Build the app with FastAPI and a response model."""
    app = FastAPI()

    @app.get("/v1/predict")
    async def predict() -> Label:
        return Label(label="cat", score=0.98)

    @app.get("/cpu", response_class=PlainTextResponse)
    async def cpu() -> str:
        return f"{time.process_time():.6f}"

    return app


def ours(app: asgi_rows.App, **settings: Any) -> asgi_rows.App:
    """Wrap an app in the whole throttle."""
    return asgi_rows.ours(app, user_limit=f"{LIMIT}/minute", rate_mid_rps=1e6, **settings)


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
    charges = (StoreCharge("user", (UserLimit("user-60s", LIMIT, 60),), "0123456789abcdef", 1),)

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await window.charge(charges)
        await app(scope, receive, send)

    return middleware


fastapi_bare = fastapi_app()
asgi_ours, fastapi_ours = ours(asgi_bare), ours(fastapi_app())
asgi_ratelimit = asgi_rows.asgi_ratelimit(asgi_bare, LIMIT)
fastapi_ratelimit = asgi_rows.asgi_ratelimit(fastapi_app(), LIMIT)
asgi_limits = asgi_rows.limits_fixed(app=asgi_bare, limit=LIMIT)
fastapi_limits = asgi_rows.limits_fixed(app=fastapi_app(), limit=LIMIT)
if REDIS_URL:
    asgi_redis, fastapi_redis = (ours(app, redis_url=REDIS_URL) for app in (asgi_bare, fastapi_app()))
    asgi_redisfloor, fastapi_redisfloor = redis_floor(asgi_bare), redis_floor(fastapi_app())
    asgi_redislimits, fastapi_redislimits = redis_limits(asgi_bare), redis_limits(fastapi_app())
