"""The demonstration's service in a process of its own: the simulated service behind the throttle, on uvicorn.

Run as ``python -m autoglm_throttle.traffic.demo.server``; see ``serving.py``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.settings import Settings
from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.testing.simulated import SimulatedGpu, SimulatedResponse, service
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.traffic.demo.downstream import Downstream
from autoglm_throttle.traffic.demo.scenario import CONNECTIONS, STATE_PATH, gpu_spec
from autoglm_throttle.traffic.demo.serving import read_config, serve
from autoglm_throttle.types import ConcurrencyView, Priority


class DemoService:
    """The simulated service, which calls a downstream first; serves the throttle's state on its own path."""

    def __init__(self, sim: SimulatedGpu, throttle: Throttle, downstream: Downstream) -> None:
        self._throttle = throttle
        self._downstream = downstream
        self._inner = service(sim)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http":
            if scope["path"] == STATE_PATH:
                state = state_of(self._throttle) | {"downstream": self._downstream.state()}
                await SimulatedResponse(scope, receive, send).answer(200, state)
                return
            await self._downstream.request()
        await self._inner(scope, receive, send)


def state_of(throttle: Throttle) -> dict[str, object]:
    """Return the throttle's part of the live view, ready for JSON."""
    snapshot = throttle.snapshot()
    control = snapshot.control
    device = snapshot.devices[0] if snapshot.devices else None
    return {
        "policy": snapshot.policy.value,
        "factor": control.factor,
        "cause": control.cause.value,
        "budget_rps": control.budget_rps,
        "table_factor": control.table_factor,
        "armed": control.armed,
        "telemetry": control.telemetry.value,
        "utilization_pct": device.utilization_pct if device else None,
        "power_w": device.power_w if device else None,
        "tiers": throttle.settings.control.tiers,
        "rate_rps": {priority.label: snapshot.rate_limit_rps[priority] for priority in Priority},
        "concurrency": None if snapshot.concurrency is None else _concurrency(snapshot.concurrency),
        "store": None if snapshot.store is None else _store(snapshot.store),
    }


def _store(view: StoreView) -> dict[str, object]:
    return {
        "decisions": view.stats.sent,
        "round_trips": view.stats.calls,
        "deny_cache_hits": view.deny_cache_hits,
        "fallbacks": sum(view.fallbacks.values()),
    }


def _concurrency(view: ConcurrencyView) -> dict[str, object]:
    return {
        "in_flight": view.in_flight,
        "limit": min(view.limit, view.memory_cap),
        "service_rps": view.service_rps,
        "waiting": {priority.label: view.waiting[priority] for priority in Priority},
    }


def build(settings: Mapping[str, str], speed: float | None, length_s: float) -> ThrottleMiddleware:
    """Build the whole application.

    Args:
        settings: of the throttle, as environment variables.
        speed: of a trace; None: the phases.
        length_s: of the demonstration.
    """
    sim = SimulatedGpu(gpu_spec(speed))
    throttle = Throttle(Settings.from_env(settings), gpu=sim)
    downstream = Downstream(throttle, length_s, time.monotonic)
    return ThrottleMiddleware(DemoService(sim, throttle, downstream), throttle=throttle)


def main() -> None:
    """Serve with the configuration from the first line of the standard input."""
    config = read_config()
    serve(build(config["environment"], config["speed"], config["length_s"]), connections=CONNECTIONS)


if __name__ == "__main__":
    main()
