"""A service whose workers share their user limits, configured by the environment and by code."""

from __future__ import annotations

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import Caller, ThrottleMiddleware
from autoglm_throttle.observe import metrics_app

throttle = Throttle(Settings.from_env(redis_read_s=20.0, redis_probe_s=0.3, retry_jitter=0.0))


async def state(request: Request) -> Response:
    """The process ID of this worker, and its throttle's state of the store."""
    store = throttle.snapshot().store
    assert store is not None
    return JSONResponse({"pid": os.getpid(), "store": store.state.value, "asked": store.stats.sent})


async def ok(request: Request) -> Response:
    """Answer at once."""
    return PlainTextResponse("ok")


def by_key(scope: Any) -> Caller | None:
    """Each key is a caller of its own, so that no test gets in the way of another."""
    key = dict(scope["headers"]).get(b"x-api-key")
    return Caller(key.decode(), verified=True) if key else None


service = Starlette(
    routes=[
        Route("/state", state),
        Route("/health", ok),
        Route("/ok", ok),
        Route("/metrics", metrics_app(throttle)),
    ]
)
app = ThrottleMiddleware(service, throttle=throttle, identify=by_key)
