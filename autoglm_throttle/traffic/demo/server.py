"""The demonstration's service, in a process of its own: the throttle round the simulated service, on uvicorn.

Run as ``python -m autoglm_throttle.traffic.demo.server``. One line of JSON on the standard input says what
to be; the port is written to the standard output. The end of the input ends the process, however it came
about: even a parent that was killed leaves nobody behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.model import Priority
from autoglm_throttle.settings import Settings
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.traffic.demo.scenario import CONNECTIONS, STATE_PATH, card
from autoglm_throttle.traffic.files import allow_connections
from autoglm_throttle.traffic.simulate import SimGpu, service
from autoglm_throttle.traffic.simulate.exchange import Exchange

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 1024
"""Connections that may wait to be accepted; Linux allows 4096 by default, macOS 128."""

PATIENCE_S = 3.0
"""After the input ended: time to close connections before the process ends anyway."""


class DemoService:
    """The simulated service with the throttle's state on a path of its own."""

    def __init__(self, sim: SimGpu, throttle: Throttle) -> None:
        self._throttle = throttle
        self._inner = service(sim)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["path"] == STATE_PATH:
            await Exchange(scope, receive, send).answer(200, state_of(self._throttle))
        else:
            await self._inner(scope, receive, send)


def state_of(throttle: Throttle) -> dict[str, object]:
    """What the live view shows of a throttle, ready for JSON."""
    snapshot = throttle.snapshot()
    device = snapshot.devices[0] if snapshot.devices else None
    return {
        "factor": snapshot.regime.factor,
        "why": snapshot.regime.why.value,
        "telemetry": snapshot.regime.telemetry.value,
        "utilization_pct": device.utilization_pct if device else None,
        "power_w": device.power_w if device else None,
        "tiers": throttle.settings.tiers,
        "rate_rps": {priority.label: snapshot.rate_limit_rps[priority] for priority in Priority},
    }


def build(settings: Mapping[str, str], speed: float | None) -> ThrottleMiddleware:
    """The whole application."""
    sim = SimGpu(card(speed))
    throttle = Throttle(Settings.from_env(settings), gpu=sim)
    return ThrottleMiddleware(DemoService(sim, throttle), throttle=throttle)


def main() -> None:
    """Serve until the standard input ends."""
    import uvicorn

    asked = json.loads(sys.stdin.readline())
    allow_connections(CONNECTIONS)
    config = uvicorn.Config(
        build(asked["environment"], asked["speed"]),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=300,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_watch, args=(server,), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        asyncio.run(server.serve(sockets=[listener]))


def _watch(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True
    time.sleep(PATIENCE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
