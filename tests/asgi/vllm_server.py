"""A vLLM server without vLLM: an app with its state, its engine client, and the middleware around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from autoglm_throttle import Demand, Permit, Priority, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing import ManualClock
from tests.asgi.run_app import App, Message, Scope, lifespan

SCHEDULER = {"max_num_seqs": 8, "max_num_queued_reqs": None, "policy": "fcfs"}
PARALLEL = {"data_parallel_size": 1, "_api_process_count": 1}


class EngineClient:
    """Counts its unfinished requests."""

    def __init__(self, unfinished: Any = 0) -> None:
        self.unfinished = unfinished

    def get_num_unfinished_requests(self) -> Any:
        if isinstance(self.unfinished, Exception):
            raise self.unfinished
        return self.unfinished


def vllm_state(scheduler: Any = (), parallel: Any = (), unfinished: Any = 0) -> SimpleNamespace:
    """The state of vLLM's app; mappings change single values."""
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**(SCHEDULER | dict(scheduler))),
        parallel_config=SimpleNamespace(**(PARALLEL | dict(parallel))),
    )
    return SimpleNamespace(vllm_config=config, engine_client=EngineClient(unfinished), args=None)


JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class VllmApp:
    """Answers every request with the same messages, and keeps the scopes."""

    def __init__(self, *parts: bytes, status: int = 200, headers: Any = JSON) -> None:
        self.parts, self.status, self.headers = parts or (b"{}",), status, headers
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        self.scopes.append(scope)
        start: Message = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def limit_of(middleware: ThrottleMiddleware) -> float:
    """The limit on requests in flight."""
    concurrency = middleware.throttle.snapshot().concurrency
    assert concurrency is not None
    return concurrency.limit


def permits_of(middleware: ThrottleMiddleware, count: int) -> list[Permit]:
    """The permits of requests in flight beside those of a test."""
    verdicts = [middleware.throttle.try_admit(Demand(Priority.MID, f"u{n}")) for n in range(count)]
    return [verdict for verdict in verdicts if isinstance(verdict, Permit)]


def inside(middleware: App, state: Any) -> App:
    """The middleware within an app of this state, whose scopes name it."""

    async def outer(scope: Scope, receive: Any, send: Any) -> None:
        await middleware({**scope, "app": SimpleNamespace(state=state)}, receive, send)

    return outer


async def serve(
    app: App, state: Any, clock: ManualClock | None = None, **settings: Any
) -> ThrottleMiddleware:
    """Start and end the middleware as a server does, within an app of this state; requests work after it."""
    chosen = Settings(**settings)
    throttle = Throttle(chosen, sampling="manual", clock=clock or ManualClock())
    middleware = ThrottleMiddleware(app, throttle=throttle)
    assert "lifespan.startup.complete" in await lifespan(inside(middleware, state))
    return middleware
