"""The same plant as a FastAPI app, alone and behind what FastAPI users take.

Both peers hold one limit for all callers, set by hand, in memory: slowapi by a fixed window of a second, as
by default, fastapi-limiter by the bucket of pyrate-limiter, on which it stands since 0.2.0.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel

from autoglm_throttle.traffic.simulate import SimulatedGpu
from autoglm_throttle.traffic.simulate.batch_queue import BatchQueue
from benchmarks.headline_rows.cases import PATH


class Asked(BaseModel):
    """What the service is asked."""

    context_tokens: int = 0
    tokens: int = 1


class Answered(BaseModel):
    """What it answers; the raw app answers alike."""

    tokens: int
    took_s: float


async def work(desk: BatchQueue, asked: Asked) -> Answered:
    """Wait for the device."""
    began_s = desk.sim.clock()
    done = await desk.submit(asked.context_tokens, asked.tokens)[1]
    if done.failed:
        raise RuntimeError(f"the device failed: {done.failed}")
    return Answered(tokens=asked.tokens, took_s=round(done.done_s - began_s, 6))


def alone(sim: SimulatedGpu) -> FastAPI:
    """The app without a limit."""
    app, desk = FastAPI(), BatchQueue(sim)

    @app.post(PATH)
    async def generate(asked: Asked) -> Answered:
        return await work(desk, asked)

    return app


def slowapi(sim: SimulatedGpu, limit_rps: int) -> FastAPI:
    """Behind slowapi's decorator, as its documentation begins."""
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded

    app, desk = FastAPI(), BatchQueue(sim)
    limiter = Limiter(key_func=lambda: "all")
    app.state.limiter = limiter
    handler: Any = _rate_limit_exceeded_handler
    app.add_exception_handler(RateLimitExceeded, handler)

    async def generate(request: Request, asked: Asked) -> Answered:  # noqa: ARG001 - slowapi asks for it
        return await work(desk, asked)

    app.post(PATH)(limiter.limit(f"{limit_rps}/second")(generate))
    return app


def fastapi_limiter(sim: SimulatedGpu, limit_rps: int) -> FastAPI:
    """Behind the dependency of fastapi-limiter, as its documentation begins."""
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate

    app, desk = FastAPI(), BatchQueue(sim)
    limited = Depends(RateLimiter(limiter=Limiter(Rate(limit_rps, Duration.SECOND))))

    @app.post(PATH, dependencies=[limited])
    async def generate(asked: Asked) -> Answered:
        return await work(desk, asked)

    return app
