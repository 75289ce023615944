"""The simulated service of the tests.

Run: ``python -m tests.cli.load_tests.simulated_service PORT CAPACITY [KEY=VALUE ...]``.

With settings it stands behind a throttle, tells its metrics at ``/metrics``, and records if ``RECORD_PATH``
is among them. ``/state`` tells that it is up.
"""

from __future__ import annotations

import os
import sys
import time

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.observe import metrics_app
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.record import RecorderMiddleware


class Front:
    """Sorts requests by their path."""

    def __init__(self, others: ASGIApp, **paths: ASGIApp) -> None:
        self._others = others
        self._paths = {f"/{name}": app for name, app in paths.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._paths.get(scope.get("path", ""), self._others)(scope, receive, send)


async def state(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def build(capacity_rps: float, settings: dict[str, str]) -> ASGIApp:
    work = BatchSpec(max_batch=16, base_s=0.004, capacity_rps=capacity_rps)
    sim = SimulatedGpu(SimulatedGpuSpec(work=work), clock=time.monotonic)
    plain = service(sim)
    if not settings:
        return Front(plain, state=state)
    named = {f"AUTOGLM_THROTTLE_{name}": value for name, value in settings.items()}
    os.environ.update(named)
    throttle = Throttle(Settings.from_env(named), gpu=sim)
    limited = RecorderMiddleware(ThrottleMiddleware(plain, throttle=throttle))
    return Front(limited, state=state, metrics=metrics_app(throttle))


def main() -> None:
    port, capacity, *settings = sys.argv[1:]
    pairs = dict(setting.split("=", 1) for setting in settings)
    uvicorn.run(build(float(capacity), pairs), port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
