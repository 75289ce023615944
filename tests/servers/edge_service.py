"""A service behind nginx: configured by its environment, it reports the client that it sees."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from autoglm_throttle import Throttle, ThrottleMiddleware
from autoglm_throttle.fastapi import exempt


@exempt
async def state(request: Request) -> Response:
    """The process, the tier, and the field in which a proxy names the client."""
    return JSONResponse(
        {
            "pid": os.getpid(),
            "factor": throttle.control_state().factor,
            "forwarded": request.headers.getlist("x-forwarded-for"),
        }
    )


throttle = Throttle.from_env()
app = Starlette(routes=[Route("/state", state), Route("/", state)])
app.add_middleware(ThrottleMiddleware, throttle=throttle)
