"""Servers of `benchmarks.headline`, one process each: ``python -m benchmarks.headline_rows.served``."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Caller, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from benchmarks.asgi_rows import App, Scope
from benchmarks.headline_rows import peers
from benchmarks.headline_rows.cases import CONNECTIONS, VARIANTS
from benchmarks.headline_rows.cores import stay_on
from benchmarks.overloaded import with_cpu_time
from examples.demo.process import read_config, serve

SPARE = 128
"""Connections in addition to those of the load: for the CPU time, and for reconnecting clients."""


USER_HEADER = b"x-user"


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service."""

    variant: str
    row: str
    redis_url: str = ""
    core: int | None = None


def gpu(capacity_rps: float) -> SimulatedGpu:
    """Build a GPU with batches of 128, 5 ms of each for the batch itself.

    Memory is not measured here, so a request takes 1 % of its usual memory: a service without a limit becomes
    slow, and does not run out of memory.
    """
    work = BatchSpec(max_batch=128, base_s=0.005, capacity_rps=capacity_rps)
    return SimulatedGpu(SimulatedGpuSpec(work=work, request_bytes=SimulatedGpuSpec().request_bytes // 100))


def signed_in(scope: Scope) -> Caller | None:
    """Return the user, as in an app with authentication."""
    for name, text in scope["headers"]:
        if name == USER_HEADER:
            return Caller(text.decode("ascii"), verified=True)
    return None


def ours(app: App, sim: SimulatedGpu, service_options: ServiceOptions) -> App:
    """Build the throttle with the simulated GPU in front of an app; on Redis with a user limit."""
    chosen: dict[str, Any] = {"priority_header_trust": "any", **VARIANTS[service_options.variant].settings}
    if service_options.row == "redis":
        shared = {"user_limit": "100/second", "key_secret": "benchmark of no secrets"}
        chosen |= {"redis_url": service_options.redis_url, **shared}
    throttle = Throttle(Settings(**chosen), gpu=sim)
    identify = signed_in if throttle.settings.users.user_limit else None
    return ThrottleMiddleware(app, throttle=throttle, identify=identify)


def build(service_options: ServiceOptions) -> App:
    """Build the application of a row."""
    variant = VARIANTS[service_options.variant]
    sim = gpu(variant.capacity_rps)
    rows: dict[str, Callable[[], App]] = {
        "bare": lambda: service(sim),
        "throttle": lambda: ours(service(sim), sim, service_options),
        "redis": lambda: ours(service(sim), sim, service_options),
        "fastapi": lambda: peers.alone(sim),
        "fastapi-throttle": lambda: ours(peers.alone(sim), sim, service_options),
        "slowapi": lambda: peers.slowapi(sim, variant.by_hand_rps),
        "fastapi-limiter": lambda: peers.fastapi_limiter(sim, variant.by_hand_rps),
    }
    return with_cpu_time(rows[service_options.row]())


def collect_rarely() -> None:
    """Make garbage collection rare, as busy services do: thousands of requests in flight are no garbage, and
    scanning them delays the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> None:
    """Serve with the options in the first line of standard input."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    service_options = ServiceOptions(**read_config())
    stay_on(service_options.core)
    app = build(service_options)
    collect_rarely()
    serve(app, connections=CONNECTIONS + SPARE)


if __name__ == "__main__":
    main()
