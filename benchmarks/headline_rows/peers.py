"""The simulated service as a FastAPI app, alone and behind common FastAPI rate limiters.

Both peers hold one limit for all callers, set by hand, in memory: slowapi by a fixed window of a second, as
by default, fastapi-limiter by the bucket of pyrate-limiter, which it uses since 0.2.0.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel

from autoglm_throttle.testing.simulated import BatchQueue, SimulatedGpu
from benchmarks.headline_rows.cases import PATH


class GenerateRequest(BaseModel):
    """Request of the service."""

    context_tokens: int = 0
    tokens: int = 1


class GenerateResponse(BaseModel):
    """Response of the service, equal to that of the raw app."""

    tokens: int
    took_s: float


async def work(queue: BatchQueue, body: GenerateRequest) -> GenerateResponse:
    """Compute a request on the device."""
    began_s = queue.sim.clock()
    done = await queue.submit(body.context_tokens, body.tokens)[1]
    if done.failed:
        raise RuntimeError(f"the device failed: {done.failed}")
    return GenerateResponse(tokens=body.tokens, took_s=round(done.done_s - began_s, 6))


def alone(sim: SimulatedGpu) -> FastAPI:
    """Build the app without a limit."""
    app, queue = FastAPI(), BatchQueue(sim)

    @app.post(PATH)
    async def generate(body: GenerateRequest) -> GenerateResponse:
        return await work(queue, body)

    return app


def slowapi(sim: SimulatedGpu, limit_rps: int) -> FastAPI:
    """Build the app with the decorator of slowapi, as in the start of its documentation."""
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded

    app, queue = FastAPI(), BatchQueue(sim)
    limiter = Limiter(key_func=lambda: "all")
    app.state.limiter = limiter
    handler: Any = _rate_limit_exceeded_handler
    app.add_exception_handler(RateLimitExceeded, handler)

    async def generate(request: Request, body: GenerateRequest) -> GenerateResponse:  # noqa: ARG001 - slowapi asks for it
        return await work(queue, body)

    app.post(PATH)(limiter.limit(f"{limit_rps}/second")(generate))
    return app


def fastapi_limiter(sim: SimulatedGpu, limit_rps: int) -> FastAPI:
    """Build the app with the dependency of fastapi-limiter, as in the start of its documentation."""
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate

    app, queue = FastAPI(), BatchQueue(sim)
    limited = Depends(RateLimiter(limiter=Limiter(Rate(limit_rps, Duration.SECOND))))

    @app.post(PATH, dependencies=[limited])
    async def generate(body: GenerateRequest) -> GenerateResponse:
        return await work(queue, body)

    return app
