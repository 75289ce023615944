"""A service whose answers take seconds and are streamed: it says so, and keeps its callers' time.

Run it:

    pip install ".[fastapi]" uvicorn
    uvicorn examples.llm_service:app

Then ask it, ask for an answer within two seconds, and look at what it has learned of itself:

    curl -N localhost:8000/v1/chat --json '{"prompt": "hi"}'
    curl -N localhost:8000/v1/chat --json '{"prompt": "hi"}' -H 'x-within: 2'
    curl localhost:8000/load
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from autoglm_throttle import RoutePolicy, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.fastapi import exempt

SETTINGS: dict[str, Any] = {
    # A long answer takes some 20 s on an idle GPU; its callers wait for 60 s, queueing included.
    "slo_s": 60,
    "routes": [
        RoutePolicy("/v1/chat", priority="high"),
        RoutePolicy("/v1/embeddings", slo_s=5),  # nobody waits long for one of these
        RoutePolicy("/v1/summaries", priority="low", slo_s=600),  # late is after minutes only
    ],
    "deadline_header": "x-within",  # a caller may shorten the time, never lengthen it
}


class Prompt(BaseModel):
    prompt: str
    tokens: int = 8


async def words(prompt: Prompt) -> AsyncIterator[str]:
    """What a model would say."""
    for number in range(prompt.tokens):
        await asyncio.sleep(0.02)
        yield f"word {number} about {prompt.prompt}\n"


def create_app(throttle: Throttle | None = None) -> FastAPI:
    """Make the service. Tests hand in a throttle of their own."""
    if throttle is None:
        throttle = Throttle(Settings.from_env(**SETTINGS))
    app = FastAPI(title="Chat")

    # A slot is held until the last word is out, or the client has left; not while the client reads slowly.
    @app.post("/v1/chat")
    async def chat(prompt: Prompt) -> StreamingResponse:
        return StreamingResponse(words(prompt), media_type="text/plain")

    @app.post("/v1/summaries")
    async def summaries(prompt: Prompt) -> dict[str, str]:
        return {"summary": "".join([word async for word in words(prompt)])}

    @app.post("/v1/embeddings")
    async def embeddings(prompt: Prompt) -> dict[str, list[float]]:
        return {"embedding": [len(word) / 10 for word in prompt.prompt.split()]}

    @app.get("/load")
    @exempt
    async def load() -> dict[str, float | None]:
        seen = throttle.snapshot()
        limit = seen.concurrency
        assert limit is not None  # there is one under the policies adaptive and concurrency
        return {
            "in_flight": limit.in_flight,
            "limit": limit.limit,
            "waiting": sum(limit.waiting),
            "service_rps": limit.service_rps,
            "pressure": seen.pressure["demand"],  # above 1 more is asked than served: the number to scale by
        }

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


app = create_app()
