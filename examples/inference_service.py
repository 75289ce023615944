"""A FastAPI inference service that keeps answering while its GPU is busier than it can be.

Run it:

    pip install ".[fastapi,prometheus]" uvicorn
    uvicorn examples.inference_service:app

Then ask it, and look at the limits and the metrics:

    curl -i -X POST localhost:8000/v1/generate -H 'content-type: application/json' -d '{"prompt": "hi"}'
    curl -i localhost:8000/v1/models
    curl localhost:8000/metrics
"""

import asyncio

from fastapi import Depends, FastAPI, Response
from pydantic import BaseModel

from autoglm_throttle import RoutePolicy, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.fastapi import add_to_openapi, exempt, limit, mark
from autoglm_throttle.observe import metrics_app


class Prompt(BaseModel):
    prompt: str
    tokens: int = 16


def create_app(throttle: Throttle | None = None) -> FastAPI:
    """Make the service. Tests hand in a throttle of their own."""
    if throttle is None:
        # What stands here wins; all else, such as AUTOGLM_THROTTLE_USER_LIMIT, comes from the environment.
        throttle = Throttle(
            Settings.from_env(
                routes=[
                    RoutePolicy("/v1/generate", priority="high", user_limit="30/minute;3/second"),
                    RoutePolicy("/v1/embed", cost=0.5),
                ]
            )
        )
    app = FastAPI(title="Inference")

    @app.post("/v1/generate")
    async def generate(prompt: Prompt) -> dict[str, str]:
        await asyncio.sleep(0.01 * prompt.tokens / 16)  # the model works
        return {"text": " ".join(reversed(prompt.prompt.split()))}

    @app.post("/v1/embed")
    async def embed(prompt: Prompt) -> dict[str, list[float]]:
        return {"embedding": [len(word) / 10 for word in prompt.prompt.split()]}

    # A batch is dear: four units more, taken from the bucket of low priority.
    @app.post("/v1/batch", dependencies=[Depends(limit("low", cost=4))])
    async def batch(prompts: list[Prompt]) -> dict[str, int]:
        return {"accepted": len(prompts)}

    @app.get("/v1/models")
    @mark(priority="low")
    async def models() -> list[str]:
        return ["echo-1"]

    @app.get("/ready")
    @exempt
    async def ready(response: Response) -> dict[str, bool]:
        is_ready = throttle.snapshot().ready
        response.status_code = 200 if is_ready else 503  # a probe reads the status alone
        return {"ready": is_ready}

    app.mount("/metrics", metrics_app(throttle))
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    add_to_openapi(app, throttle=throttle)
    return app


app = create_app()
