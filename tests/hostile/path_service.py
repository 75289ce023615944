"""A service whose endpoints report their own name, and the units that the throttle has charged for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware, exempt, mark, permit_of
from autoglm_throttle.settings import RoutePolicy

POLICY, MARK, DEFAULT, FREE = 2.0, 3.0, 1.0, 0.0

done = Counter[str]()
"""Calls of endpoints, and the units that were charged for them."""


def report(name: str, scope: Any) -> dict[str, Any]:
    """Name the endpoint, the path it got, and its charge; an exempt request has no permit."""
    permit = permit_of(scope)
    cost = FREE if permit is None else permit.demand.cost
    done.update(calls=1, charged=int(cost))
    return {"endpoint": name, "path": scope["path"], "method": scope.get("method"), "cost": cost}


async def generate(request: Request) -> Response:
    """An endpoint with a policy of its own."""
    return JSONResponse(report("generate", request.scope))


async def internal(request: Request) -> Response:
    """A catch-all endpoint that the settings exempt."""
    return JSONResponse(report("internal", request.scope))


async def gateway(request: Request) -> Response:
    """A catch-all endpoint without a policy."""
    return JSONResponse(report("gateway", request.scope))


async def reader(request: Request) -> Response:
    """An endpoint whose policy names GET alone."""
    return JSONResponse(report("reader", request.scope))


@mark(cost=MARK)
async def marked(request: Request) -> Response:
    """An endpoint with a mark."""
    return JSONResponse(report("marked", request.scope))


@exempt
async def free(request: Request) -> Response:
    """An endpoint that its mark exempts."""
    return JSONResponse(report("free", request.scope))


async def state(request: Request) -> Response:
    """Report calls and charges of all endpoints, and the requests that were counted."""
    counted = throttle.snapshot()
    return JSONResponse(
        {
            "calls": done["calls"],
            "charged": done["charged"],
            "counted": sum(counted.requests.values()) + counted.exempt,
            "active": sum(counted.active.values()),
            "malformed": counted.oddities.get("malformed_scope", 0),
        }
    )


async def told(websocket: WebSocket) -> None:
    """Send the report of a websocket, and close it."""
    await websocket.accept()
    await websocket.send_json(report("ws", websocket.scope))
    await websocket.close()


METHODS = ["GET", "POST", "OPTIONS", "DELETE", "PURGE"]

service = Starlette(
    routes=[
        Route("/state", state),
        Route("/v1/generate", generate, methods=METHODS),
        Route("/v1/read", reader),
        Route("/marked/{number}", marked),
        Route("/free", free),
        Mount("/sub", routes=[Route("/costly", marked)]),
        Route("/internal/{rest:path}", internal, methods=METHODS),
        Route("/gw/{rest:path}", gateway, methods=METHODS),
        WebSocketRoute("/v1/ws", told),
        WebSocketRoute("/internal/{rest:path}", told),
    ]
)

throttle = Throttle(
    Settings(
        gpu="none",
        policy="fixed",
        rate_mid_rps=1_000_000,
        exempt_paths="/state",
        routes=[
            RoutePolicy("/v1/generate", cost=POLICY),
            RoutePolicy("/v1/read", methods=frozenset({"GET"}), cost=POLICY),
            RoutePolicy("/v1/ws", cost=POLICY),
            RoutePolicy("/internal/*", exempt=True),
        ],
    )
)
app = ThrottleMiddleware(service, throttle=throttle)
