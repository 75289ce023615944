"""Every kind of endpoint, and every way to attach a throttle to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket as StarletteWebSocket

from autoglm_throttle import Priority, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import throttle_for_tests
from tests.asgi.run_app import App

LIMIT = 3
TIMES = LIMIT + 3

Endpoint = Callable[..., Any]
Decorate = Callable[[Endpoint], Endpoint]


def plain(endpoint: Endpoint) -> Endpoint:
    return endpoint


class Site:
    """One endpoint, reached at one path in one kind of app."""

    def __init__(
        self, build: Callable[[Decorate], Any], path: str, answers: int = 200, method: str = "GET"
    ) -> None:
        self.build = build
        self.path = path
        self.answers = answers
        self.method = method


def fast_endpoint(decorate: Decorate) -> Endpoint:
    async def endpoint() -> str:
        return "ok"

    return decorate(endpoint)


def fast_direct(decorate: Decorate) -> FastAPI:
    app = FastAPI()
    app.get("/x")(fast_endpoint(decorate))
    return app


def fast_router(*prefixes: str, own: str = "", path: str = "/x") -> Callable[[Decorate], FastAPI]:
    """An endpoint in a router, included with each of the prefixes from the innermost to the outermost."""

    def build(decorate: Decorate) -> FastAPI:
        router = APIRouter(prefix=own)
        router.get(path)(fast_endpoint(decorate))
        for prefix in prefixes[:-1]:
            outer = APIRouter()
            outer.include_router(router, prefix=prefix)
            router = outer
        app = FastAPI()
        app.include_router(router, prefix=prefixes[-1])
        return app

    return build


def mounted(build: Callable[[Decorate], Any], *paths: str) -> Callable[[Decorate], Any]:
    """Another app, mounted at each of the paths from the innermost to the outermost."""

    def mount(decorate: Decorate) -> Any:
        app = build(decorate)
        for path in paths:
            outer = FastAPI()
            outer.mount(path, app)
            app = outer
        return app

    return mount


def star_endpoint(decorate: Decorate) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    return decorate(endpoint)


def star_direct(decorate: Decorate) -> Starlette:
    return Starlette(routes=[Route("/x", star_endpoint(decorate))])


def star_mounted(decorate: Decorate) -> Starlette:
    inner = Mount("/in/{room}", routes=[Route("/x/{item:int}", star_endpoint(decorate))])
    return Starlette(routes=[Mount("/out", routes=[inner])])


def raw(decorate: Decorate) -> Endpoint:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("ok")(scope, receive, send)

    return decorate(app)


SITES = {
    "fastapi direct": Site(fast_direct, "/x"),
    "router, prefix at include": Site(fast_router("/in"), "/in/x"),
    "router, prefix on router": Site(fast_router("", own="/own"), "/own/x"),
    "router, both prefixes": Site(fast_router("/in", own="/own"), "/in/own/x"),
    "router, nested": Site(fast_router("/in", "/out", own="/own"), "/out/in/own/x"),
    "router, nested twice": Site(fast_router("/a", "/b", "/c"), "/c/b/a/x"),
    "router, parameters": Site(fast_router("/t/{tenant}", path="/x/{item}"), "/t/acme/x/7"),
    "mount": Site(mounted(fast_direct, "/m"), "/m/x"),
    "mount, nested": Site(mounted(fast_direct, "/m", "/n"), "/n/m/x"),
    "mount, parameters": Site(mounted(fast_direct, "/t/{tenant}"), "/t/acme/x"),
    "router in a mount": Site(mounted(fast_router("/in"), "/m"), "/m/in/x"),
    "starlette direct": Site(star_direct, "/x"),
    "starlette mount, parameters": Site(star_mounted, "/out/in/7/x/7"),
    "starlette in fastapi": Site(mounted(star_direct, "/m"), "/m/x"),
    "raw app": Site(raw, "/any/path"),
    "raw app in a mount": Site(mounted(raw, "/m"), "/m/any"),
    "head": Site(star_direct, "/x", method="HEAD"),
    "trailing slash": Site(fast_direct, "/x/", 307),
}
UNROUTED = {
    "404": Site(fast_direct, "/nowhere", 404),
    "404 in a mount": Site(mounted(fast_direct, "/m"), "/m/nowhere", 404),
    "405": Site(fast_direct, "/x", 405, "DELETE"),
    "double slash": Site(fast_direct, "//x", 404),
    "path in full": Site(star_direct, "http://other/x", 404),
    "empty path": Site(raw, "", 200),
}


def by_env(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    for name, value in limits.items():
        monkeypatch.setenv(f"AUTOGLM_THROTTLE_{name.upper()}", str(value))
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")
    if hasattr(app, "add_middleware"):
        app.add_middleware(ThrottleMiddleware)
        return cast("App", app)
    return ThrottleMiddleware(app)


def by_argument(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    throttle = throttle_for_tests(**limits)
    if hasattr(app, "add_middleware"):
        app.add_middleware(ThrottleMiddleware, throttle=throttle)
        return cast("App", app)
    return ThrottleMiddleware(app, throttle=throttle)


def by_wrapping(app: Any, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> App:
    return ThrottleMiddleware(app, throttle=throttle_for_tests(**limits))


WAYS = {"env": by_env, "add_middleware": by_argument, "wrapping": by_wrapping}
USER: dict[str, Any] = {"user_limit": f"{LIMIT}/minute"}
BUCKET: dict[str, Any] = {"rate_mid_rps": 0.001, "burst_s": LIMIT * 1000}


def fast_websocket(decorate: Decorate) -> FastAPI:
    app = FastAPI()

    @app.websocket("/ws")
    @decorate
    async def endpoint(websocket: WebSocket) -> None:
        await websocket.accept()

    return app


def routed_websocket(decorate: Decorate) -> FastAPI:
    inner = fast_websocket(decorate)
    app = FastAPI()
    app.include_router(inner.router, prefix="/in")
    return app


def star_websocket(decorate: Decorate) -> Starlette:
    async def endpoint(websocket: StarletteWebSocket) -> None:
        await websocket.accept()

    return Starlette(routes=[WebSocketRoute("/ws", decorate(endpoint))])


SOCKETS = {
    "fastapi": Site(fast_websocket, "/ws"),
    "router": Site(routed_websocket, "/in/ws"),
    "mount": Site(mounted(fast_websocket, "/m"), "/m/ws"),
    "starlette": Site(star_websocket, "/ws"),
    "mount, starlette": Site(mounted(star_websocket, "/t/{tenant}"), "/t/acme/ws"),
}


def admitted(throttle: Throttle) -> int:
    rows = throttle.snapshot().requests
    return sum(n for (_, name, _), n in rows.items() if name == "admitted")


def by_priority(throttle: Throttle) -> list[int]:
    rows = throttle.snapshot().requests
    return [sum(n for (p, name, _), n in rows.items() if name == "admitted" and p is q) for q in Priority]
