"""The same small app behind the throttle and behind each peer, driven without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware

Scope = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

USERS = 200
LIMIT = 100
"""Requests a minute; every user uses up exactly this limit in one round."""

HEADERS = [
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"benchmark"),
]


async def bare(_scope: Scope, _receive: Any, send: Any) -> None:
    """Serve the bare app."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"2")],
        }
    )
    await send({"type": "http.response.body", "body": b"ok"})


def wrapped() -> App:
    """Wrap the app in a middleware that does nothing: the floor."""

    async def middleware(scope: Scope, receive: Any, send: Any) -> None:
        await bare(scope, receive, send)

    return middleware


def ours(app: App = bare, **settings: Any) -> App:
    """Wrap an app in the whole throttle: identity, priority bucket, user window, permit, RateLimit fields."""
    usual: dict[str, Any] = {"user_limit": f"{LIMIT}/minute", "rate_mid_rps": 1e6, "gpu": "none"}
    return ThrottleMiddleware(app, throttle=Throttle(Settings(**usual | settings)))


def asgi_ratelimit(app: App = bare, limit: int = LIMIT, per: str = "minute", backend: Any = None) -> App:
    """Wrap an app in asgi-ratelimit, by default in memory: a rule for all paths, the user from the scope."""
    from ratelimit import RateLimitMiddleware, Rule
    from ratelimit.backends import simple

    async def client(scope: Any) -> tuple[str, str]:
        return scope["client"][0], "default"

    memory: Any = simple.MemoryBackend
    rule: dict[str, Any] = {per: limit}
    limited: App = RateLimitMiddleware(app, client, backend or memory(), {r"^/": [Rule(**rule)]})
    return limited


def limits_fixed(
    strategy: str = "FixedWindowRateLimiter",
    app: App = bare,
    limit: int = LIMIT,
    per: str = "minute",
    storage: Any = None,
) -> App:
    """Wrap an app in an engine of ``limits`` with key and rejection, without header fields."""
    from limits import parse, strategies
    from limits.storage import MemoryStorage

    limiter = getattr(strategies, strategy)(storage or MemoryStorage())
    item = parse(f"{limit}/{per}")

    async def middleware(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or limiter.hit(item, scope["client"][0]):
            await app(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return middleware


def limits_moving() -> App:
    """Wrap the app in the moving window of ``limits``: exact, as ours is."""
    return limits_fixed("MovingWindowRateLimiter")


def slowapi(limit: int = LIMIT, storage: str = "memory://") -> App:
    """Wrap a Starlette app in the ASGI middleware of slowapi, as documented."""
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse

    async def endpoint(request: Request) -> PlainTextResponse:  # noqa: ARG001
        return PlainTextResponse("ok")

    app = Starlette()
    app.add_route("/predict", endpoint)
    app.state.limiter = Limiter(
        key_func=get_remote_address,
        default_limits=[f"{limit}/minute"],
        headers_enabled=True,
        storage_uri=storage,
    )
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def starlette_alone() -> App:
    """Build the Starlette app alone: the control of the slowapi row."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse

    async def endpoint(request: Request) -> PlainTextResponse:  # noqa: ARG001
        return PlainTextResponse("ok")

    app = Starlette()
    app.add_route("/predict", endpoint)
    return app


def scopes(start: int = 0) -> list[dict[str, Any]]:
    """Build one round of requests: every user in turn, LIMIT times."""
    return [
        {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/predict",
            "raw_path": b"/predict",
            "root_path": "",
            "query_string": b"",
            "headers": list(HEADERS),
            "client": (f"10.0.{(user + start) // 250}.{(user + start) % 250}", 40000),
            "server": ("127.0.0.1", 8000),
        }
        for _ in range(LIMIT)
        for user in range(USERS)
    ]


class Counter:
    """Counts responses by status, so that a row with other results is detected."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}

    async def __call__(self, message: Any) -> None:
        """Replace the send of a server."""
        if message["type"] == "http.response.start":
            status = message["status"]
            self.statuses[status] = self.statuses.get(status, 0) + 1


async def receive() -> dict[str, Any]:
    """Replace the receive of a server."""
    return {"type": "http.request", "body": b"", "more_body": False}


def seconds_each(make: Callable[[], App], *, rejected: bool) -> float:
    """Measure seconds per request of one round; with ``refused``, after every limit is used up."""

    async def run() -> float:
        app = make()
        send = Counter()
        if rejected:
            for scope in scopes():
                await app(scope, receive, send)
            send.statuses.clear()
        requests = scopes()[::-1]
        count = len(requests)
        begun = time.perf_counter()
        while requests:
            await app(requests.pop(), receive, send)  # a server lets go of each scope, too
        spent = time.perf_counter() - begun
        expected = {429: count} if rejected else {200: count}
        if send.statuses != expected:
            raise RuntimeError(f"another job was done: {send.statuses}, not {expected}")
        return spent / count

    return asyncio.run(run())
