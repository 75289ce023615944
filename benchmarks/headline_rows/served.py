"""The servers of `benchmarks.headline`, one process each: ``python -m benchmarks.headline_rows.served``."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Caller, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.traffic.demo.serving import read_config, serve
from autoglm_throttle.traffic.simulate import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from benchmarks.asgi_rows import App, Scope
from benchmarks.headline_rows import peers
from benchmarks.headline_rows.cases import CONNECTIONS, VARIANTS
from benchmarks.headline_rows.cores import stay_on
from benchmarks.overloaded import told

SPARE = 128
"""Connections beside those of the load: who asks for the CPU time, and who comes again."""


USER_HEADER = b"x-user"


@dataclass(frozen=True)
class Asked:
    """What is to be served."""

    variant: str
    row: str
    redis_url: str = ""
    core: int | None = None


def gpu(capacity_rps: float) -> SimulatedGpu:
    """Batches of 128, 5 ms of each for the batch itself.

    Memory is no question here, so a request takes 1 % of its usual memory: what has no limit becomes slow,
    and does not die.
    """
    work = BatchSpec(max_batch=128, base_s=0.005, capacity_rps=capacity_rps)
    return SimulatedGpu(SimulatedGpuSpec(work=work, request_bytes=SimulatedGpuSpec().request_bytes // 100))


def signed_in(scope: Scope) -> Caller | None:
    """The user, as an app knows it whose users have signed in."""
    for name, text in scope["headers"]:
        if name == USER_HEADER:
            return Caller(text.decode("ascii"), verified=True)
    return None


def ours(sim: SimulatedGpu, asked: Asked) -> App:
    """Behind the throttle, which reads the simulated GPU; on Redis it asks for the limit of the user."""
    chosen: dict[str, Any] = {"priority_header_trust": "any", **VARIANTS[asked.variant].settings}
    if asked.row == "redis":
        shared = {"user_limit": "100/second", "key_secret": "benchmark of no secrets"}
        chosen |= {"redis_url": asked.redis_url, **shared}
    throttle = Throttle(Settings(**chosen), gpu=sim)
    identify = signed_in if throttle.settings.user_limit else None
    return ThrottleMiddleware(service(sim), throttle=throttle, identify=identify)


def build(asked: Asked) -> App:
    """The whole application of a row."""
    variant = VARIANTS[asked.variant]
    sim = gpu(variant.capacity_rps)
    rows: dict[str, Callable[[], App]] = {
        "bare": lambda: service(sim),
        "throttle": lambda: ours(sim, asked),
        "redis": lambda: ours(sim, asked),
        "fastapi": lambda: peers.alone(sim),
        "slowapi": lambda: peers.slowapi(sim, variant.by_hand_rps),
        "fastapi-limiter": lambda: peers.fastapi_limiter(sim, variant.by_hand_rps),
    }
    return told(rows[asked.row]())


def collect_seldom() -> None:
    """As busy services do, in every row alike: thousands of requests inside are no garbage, and looking
    through all of them for it holds up the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def main() -> None:
    """Serve what the first line of the standard input asks for."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    asked = Asked(**read_config())
    stay_on(asked.core)
    app = build(asked)
    collect_seldom()
    serve(app, connections=CONNECTIONS + SPARE)


if __name__ == "__main__":
    main()
