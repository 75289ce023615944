"""Services of `benchmarks.overload`, one process each: ``python -m benchmarks.overloaded``.

Each is the simulated inference service behind a middleware, or alone. Middleware with a fixed limit gets the
right one: the requests/s of this GPU, or two of its batches.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.types import Policy
from benchmarks import asgi_rows
from benchmarks.asgi_rows import App, Scope
from examples.demo.process import read_config, serve

CPU_PATH = "/overload/cpu"
"""Path of the CPU seconds of this process; it bypasses the measured middleware."""

INSIDE = 32
"""The right concurrency limit of this GPU: one running and one waiting batch."""

CONNECTIONS = 4_000


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service."""

    row: str
    capacity_rps: float
    slo_s: float


def gpu(capacity_rps: float) -> SimulatedGpu:
    """Build the GPU of `benchmarks.closed_loop`: batches of 16, 10 ms of each for the batch itself.

    Memory is not measured here, so a request takes 1 % of its usual memory: rows without a limit become slow,
    and do not run out of memory.
    """
    work = BatchSpec(max_batch=16, base_s=1.0 / capacity_rps, capacity_rps=capacity_rps)
    return SimulatedGpu(SimulatedGpuSpec(work=work, request_bytes=SimulatedGpuSpec().request_bytes // 100))


def instant() -> SimulatedGpu:
    """Build a GPU that takes no time, so that only server and client limit the rate."""
    return gpu(1e6)


def ours(app: App, sim: SimulatedGpu, service_options: ServiceOptions, **settings: Any) -> App:
    """Wrap the app in the throttle with the simulated GPU."""
    chosen = Settings(slo_s=service_options.slo_s, priority_header_trust="any", **settings)
    return ThrottleMiddleware(app, throttle=Throttle(chosen, gpu=sim))


def semaphore(app: App) -> App:
    """Wrap the app in a semaphore: the right number runs, all others wait without a limit."""
    slot = asyncio.Semaphore(INSIDE)

    async def middleware(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        async with slot:
            await app(scope, receive, send)

    return middleware


def full(app: App) -> App:
    """Wrap the app in a concurrency limit: the right number runs, all others are rejected at once."""
    inside = 0

    async def middleware(scope: Scope, receive: Any, send: Any) -> None:
        nonlocal inside
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if inside >= INSIDE:
            headers = [(b"retry-after", b"1"), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        inside += 1
        try:
            await app(scope, receive, send)
        finally:
            inside -= 1

    return middleware


def per_second(service_options: ServiceOptions) -> dict[str, Any]:
    """Return the right rate limit of this GPU."""
    return {"limit": round(service_options.capacity_rps), "per": "second"}


@dataclass(frozen=True)
class Row:
    """The middleware of a row."""

    title: str
    wrap: Callable[[App, SimulatedGpu, ServiceOptions], App]
    instant: bool = False
    """Whether the GPU takes no time: a control."""
    limit_concurrency: int | None = None
    """Option of uvicorn."""


def _policy(policy: Policy) -> Callable[[App, SimulatedGpu, ServiceOptions], App]:
    return lambda app, sim, service_options: ours(app, sim, service_options, policy=policy)


def _unbound(app: App, sim: SimulatedGpu, service_options: ServiceOptions) -> App:
    rates = {f"rate_{name}_rps": 1e6 for name in ("high", "mid", "low")}
    return ours(app, sim, service_options, policy=Policy.ADAPTIVE, **rates)


def _alone(app: App, _sim: SimulatedGpu, _asked: ServiceOptions) -> App:
    return app


ROWS: dict[str, Row] = {
    "none": Row("no middleware", _alone),
    "adaptive": Row("autoglm_throttle, adaptive", _policy(Policy.ADAPTIVE)),
    "concurrency": Row("autoglm_throttle, concurrency", _policy(Policy.CONCURRENCY)),
    "tiers": Row("autoglm_throttle, tiers", _policy(Policy.TIERS)),
    "limits": Row(
        "limits, fixed window of 1 s",
        lambda app, _, service_options: asgi_rows.limits_fixed(app=app, **per_second(service_options)),
    ),
    "ratelimit": Row(
        "asgi-ratelimit, 1 s",
        lambda app, _, service_options: asgi_rows.asgi_ratelimit(app, **per_second(service_options)),
    ),
    "full": Row(f"concurrency limit {INSIDE}", lambda app, _sim, _asked: full(app)),
    "semaphore": Row(f"asyncio.Semaphore({INSIDE})", lambda app, _sim, _asked: semaphore(app)),
    "uvicorn": Row(f"uvicorn --limit-concurrency {INSIDE}", _alone, limit_concurrency=INSIDE),
    "control": Row("instant GPU, no middleware", _alone, instant=True),
    "control_ours": Row("instant GPU, adaptive", _unbound, instant=True),
}


def with_cpu_time(app: App) -> App:
    """Wrap the app, with the CPU seconds of this process on a path of their own."""

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == CPU_PATH:
            body = json.dumps({"cpu_s": time.process_time()}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await app(scope, receive, send)

    return outermost


def build(service_options: ServiceOptions) -> App:
    """Build the application of a row."""
    row = ROWS[service_options.row]
    sim = instant() if row.instant else gpu(service_options.capacity_rps)
    return with_cpu_time(row.wrap(service(sim), sim, service_options))


def main() -> None:
    """Serve with the options in the first line of standard input."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    service_options = ServiceOptions(**read_config())
    limit = ROWS[service_options.row].limit_concurrency
    serve(build(service_options), connections=CONNECTIONS, limit_concurrency=limit)


if __name__ == "__main__":
    main()
