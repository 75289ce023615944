"""A gateway with marks and route policies: each spelling of a path and each method reaches a handler."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request, WebSocket
from starlette.responses import PlainTextResponse, Response

from autoglm_throttle import RoutePolicy, Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, mark
from autoglm_throttle.fastapi import limit
from tests.servers.service import by_key

LIMIT, LIMIT_OF_ROUTE, COST = 6, 2, 3
"""Requests a minute of a caller: anywhere, to the limited route; units of the marked endpoint."""

throttle = Throttle(
    Settings(
        gpu="none",
        policy="fixed",
        user_limit=f"{LIMIT}/minute",
        exempt_paths=("/state",),
        rate_mid_rps=100_000,
        routes=[
            RoutePolicy("/v1/generate", methods=["GET"], user_limit=f"{LIMIT_OF_ROUTE}/minute"),
            RoutePolicy("/ws", user_limit=f"{LIMIT_OF_ROUTE}/minute"),
            RoutePolicy("/internal/*", exempt=True),
        ],
    )
)
service = FastAPI()


@service.api_route("/v1/generate", methods=["GET", "HEAD"])
async def generate() -> Response:
    """The dear route."""
    return PlainTextResponse("text")


@service.get("/marked")
@mark(cost=COST)
async def marked() -> Response:
    """Dear by its mark."""
    return PlainTextResponse("text")


@service.get("/half", dependencies=[Depends(limit(cost=LIMIT // 2))])
async def half() -> Response:
    """More than half of the limit, with the unit of any request."""
    return PlainTextResponse("text")


@service.get("/too-dear", dependencies=[Depends(limit(cost=LIMIT))])
async def too_dear() -> Response:
    """One unit more than the limit."""
    return PlainTextResponse("text")


@service.websocket("/ws")
async def echo(websocket: WebSocket) -> None:
    """Accept, and close with the client."""
    await websocket.accept()
    await websocket.receive()


@service.api_route("/{path:path}", methods=["GET", "POST", "OPTIONS"])
async def gateway(request: Request) -> Response:
    """Answer any other path, as a gateway does."""
    return PlainTextResponse(request.url.path)


service.add_middleware(ThrottleMiddleware, throttle=throttle, identify=by_key)
app = service
