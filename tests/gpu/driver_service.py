"""One service for each error of the driver, in one process: each has its own throttle and device.

The loader must find the fake library, and ``FAKE_NVML_FILE`` names its state, which the tests write.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.gpu.sampler import THREAD
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.types import GpuSample
from tests.gpu.sampler_doubles import Source

CODES = (1, 2, 3, 4, 6, 9, 10, 12, 13, 15, 16, 18, 25, 28, 999)
"""Error codes of the library with a meaning of their own."""

SETTINGS: dict[str, Any] = {
    "policy": "tiers",
    "user_limit": "1000000/minute",
    "rate_mid_rps": 1_000_000,
    "sample_interval_s": 0.2,
}
QUICK: dict[str, Any] = {"gpu_stale_after_s": 0.6, "gpu_blind_after_s": 1.2}


def engine() -> list[GpuSample]:
    """An engine that is always healthy."""
    numbers: dict[str, Any] = {"queued": 0, "running": 1, "kv_used_ratio": 0.5}
    now = time.monotonic()
    return [GpuSample(device="engine", index=0, taken_at_s=now, source="engine", kind="engine", **numbers)]


DEVICE = {str(code): index for index, code in enumerate(CODES)} | {
    name: len(CODES) + index for index, name in enumerate(("pair", "other", "joined", "hung"))
}
"""Throttle -> index of its card; ``other`` is the second card of ``pair``."""

throttles: dict[str, Throttle] = {
    str(code): Throttle(Settings(gpu=("nvml",), gpu_devices=(str(DEVICE[str(code)]),), **SETTINGS, **QUICK))
    for code in CODES
}
throttles["pair"] = Throttle(
    Settings(gpu=("nvml",), gpu_devices=(str(DEVICE["pair"]), str(DEVICE["other"])), **SETTINGS)
)
throttles["hung"] = Throttle(Settings(gpu=("nvml",), gpu_devices=(str(DEVICE["hung"]),), **SETTINGS))
throttles["joined"] = Throttle(
    Settings(**SETTINGS),
    gpu=(
        *providers(GpuSettings(gpu=("nvml",), gpu_devices=(str(DEVICE["joined"]),))),
        Source(engine, name="vllm:here:1"),
    ),
)


class Changes(logging.Handler):
    """Records log events, with the telemetry state of the throttle."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the event and the text."""
        found = {"event": getattr(record, "event", ""), "text": record.getMessage()}
        self.kept.append(found | {"state": getattr(record, "state", "")})


changes = Changes()
logging.getLogger("autoglm_throttle").addHandler(changes)


async def ok(request: Request) -> Response:
    """Respond at once."""
    return PlainTextResponse("ok")


async def state(request: Request) -> Response:
    """Return the state of every throttle."""
    seen = {}
    for name, throttle in throttles.items():
        snapshot = throttle.snapshot()
        control_state = snapshot.control
        seen[name] = {
            "telemetry": control_state.telemetry,
            "age_s": max((snapshot.taken_at_s - row.taken_at_s for row in snapshot.devices), default=None),
            "factor": control_state.factor,
            "why": control_state.cause,
            "signal": control_state.signal,
            "ready": snapshot.ready,
            "health": [row.health for row in snapshot.devices],
            "errors": [one.last_error for one in snapshot.sources],
            "sources": [one.state for one in snapshot.sources],
            "failures": [one.failures for one in snapshot.sources],
            "callback_errors": sum(
                s.status.callback_errors for s in throttle.control.monitor.samplers.values()
            ),
        }
    return JSONResponse(seen)


def restart(request: Request) -> Response:
    """Stop and start the throttles with a hung driver, on a thread of its own."""
    for name in ("hung", "joined"):
        throttles[name].stop()
        throttles[name].start()
    return PlainTextResponse("again")


async def samplers(request: Request) -> Response:
    """Return the reading threads, and the log events."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD)]
    return JSONResponse({"threads": names, "logged": changes.kept})


def mounted(throttle: Throttle) -> Any:
    """Build a service behind this throttle."""
    return ThrottleMiddleware(Starlette(routes=[Route("/ok", ok)]), throttle=throttle)


app = Starlette(
    routes=[
        Route("/state", state),
        Route("/samplers", samplers),
        Route("/restart", restart),
        *(Mount(f"/{name}", mounted(throttle)) for name, throttle in throttles.items()),
    ]
)
