"""The service that real servers run and record."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.traffic.record import RecorderMiddleware


async def told(request: Request) -> JSONResponse:
    """Respond with the process id."""
    return JSONResponse({"pid": os.getpid()})


app = Starlette(routes=[Route("/{path:path}", told)])
app.add_middleware(ThrottleMiddleware, throttle=Throttle(Settings(gpu="none", rate_mid_rps=1e6)))
app.add_middleware(RecorderMiddleware)
