"""A service that asks a vector store and a recommender, and goes on without them.

Run it:

    pip install '.[fastapi,httpx]' uvicorn
    uvicorn examples.guarded_downstream:app

ask a few times, then let the recommender fail and ask again: the answers stay, and say where they come from:

    curl -i localhost:8000/search/cats
    curl -X POST localhost:8000/trouble
    curl -i localhost:8000/search/cats
    curl localhost:8000/guards
"""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from autoglm_throttle import BreakerSettings, Fallback, GuardRejected, Throttle, ThrottleMiddleware
from autoglm_throttle.fastapi import exempt, guard_rejected
from autoglm_throttle.resilience.httpx import AsyncGuardTransport


async def neighbours(request: Request) -> Response:
    """What the vector store of this example answers; in reality it is somewhere else."""
    return JSONResponse([f"{request.path_params['text']}-{number}" for number in range(3)])


class Recommender:
    """Another service that this one can do without."""

    def __init__(self) -> None:
        self.well = True

    async def related(self, text: str) -> list[str]:
        if not self.well:
            raise ConnectionError("the recommender does not answer")
        return [f"more {text}"]


def create_app(throttle: Throttle, store: httpx.AsyncBaseTransport) -> FastAPI:
    """The service.

    Args:
        throttle: limits what comes in and guards what goes out.
        store: how the vector store is reached.
    """
    app = FastAPI()
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    app.add_exception_handler(GuardRejected, guard_rejected)  # the vector store is away: 503 with Retry-After
    recommender = Recommender()
    throttle.feature("vector-db", breaker=BreakerSettings(failures=3, open_s=5))
    throttle.feature("related", criticality="non_core", fallback=Fallback(stale=True, static=[]))
    guarded = AsyncGuardTransport(throttle, store, name="vector-db")
    client = httpx.AsyncClient(transport=guarded, base_url="http://vectors", timeout=2.0)

    @throttle.guard("related")
    async def related(text: str) -> list[str]:
        return await recommender.related(text)

    @app.get("/search/{text}")
    async def search(text: str) -> dict[str, Any]:
        found = await client.get(f"/neighbours/{text}")
        return {"found": found.raise_for_status().json(), "related": await related(text)}

    @app.post("/trouble")
    @exempt
    async def trouble() -> str:
        recommender.well = not recommender.well
        return "well" if recommender.well else "in trouble"

    @app.get("/guards")
    @exempt
    async def guards() -> dict[str, str]:
        view = throttle.snapshot().guards
        return {} if view is None else {breaker.name: breaker.state for breaker in view.breakers}

    return app


vectors = Starlette(routes=[Route("/neighbours/{text}", neighbours)])
app = create_app(Throttle.from_env(), httpx.ASGITransport(vectors))
