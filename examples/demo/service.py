"""The demonstration's service in a process of its own: a simulated service behind the throttle.

Before each request it calls a downstream, a dependency that fails for a while, through a guard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.observe import status_app
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing import SimulatedLlm
from autoglm_throttle.testing.simulated import SimulatedGpu, SimulatedResponse, service
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import Criticality, FallbackKind, GpuSample, Priority
from examples.demo.process import read_config, serve
from examples.demo.scenario import CONNECTIONS, LLM_SPEC, OUTAGE, PAGE_PATH, STATE_PATH, gpu_spec

NAME: Final = "related"
ITEMS: Final = 50
"""Items requested in turn: few, so that each was requested before the outage begins."""

ANSWER_S: Final = 0.002
"""Response time of the downstream while it works."""


class Downstream:
    """Returns items related to an item, except during its outage."""

    def __init__(self, throttle: Throttle, length_s: float, clock: Callable[[], float]) -> None:
        self.calls: int = 0
        """Calls that reached the downstream."""
        self.failed: int = 0
        self._throttle = throttle
        self._outage_s = tuple(share * length_s for share in OUTAGE)
        self._clock = clock
        self._begun_s: float | None = None
        self._turns = count()
        guard = throttle.feature(
            NAME, criticality=Criticality.NON_CORE, fallback=Fallback(stale=True, static=())
        )
        self._guarded_call = guard(self._answer)

    async def request(self) -> tuple[int, ...]:
        """Return the items related to the next item; if the call is not possible, the stale ones or none."""
        return await self._guarded_call(next(self._turns) % ITEMS)

    def state(self) -> dict[str, object]:
        """Return the downstream's part of the live view, ready for JSON."""
        guards = self._throttle.snapshot().guards
        breaker = None if guards is None else next((b for b in guards.breakers if b.name == NAME), None)
        if guards is None or breaker is None:
            return {}
        by_cause: dict[str, int] = {}
        for (_, fallback, cause), number in guards.degraded.items():
            key = "load" if cause in {"load", "shed"} else "outage"
            by_cause[key] = by_cause.get(key, 0) + number * (fallback is not FallbackKind.SHED)
        openings = sum(n for (_, state), n in guards.transitions.items() if state.value == "open")
        return {
            "name": NAME,
            "state": breaker.state.value,
            "retry_after_s": breaker.retry_after_s,
            "openings": openings,
            "level": guards.level.label,
            "calls": self.calls,
            "failed": self.failed,
            "fallbacks": by_cause,
        }

    async def _answer(self, item: int) -> tuple[int, ...]:
        now = self._clock()
        if self._begun_s is None:
            self._begun_s = now
        begins_s, ends_s = self._outage_s
        self.calls += 1
        await asyncio.sleep(ANSWER_S)
        if begins_s <= now - self._begun_s < ends_s:
            self.failed += 1
            raise ConnectionError("the downstream of the demonstration is unavailable")
        return (item + 1, item + 2)


class DemoService:
    """The simulated service, which calls a downstream first; serves the throttle's state on its own path."""

    def __init__(self, inner: ASGIApp, throttle: Throttle, downstream: Downstream) -> None:
        self._throttle = throttle
        self._downstream = downstream
        self._inner = inner

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
    control, view, store = snapshot.control, snapshot.concurrency, snapshot.store
    device = snapshot.devices[0] if snapshot.devices else None
    return {
        "policy": snapshot.policy.value,
        "factor": control.factor,
        "cause": control.cause.value,
        "budget_rps": control.budget_rps,
        "table_factor": control.table_factor,
        "armed": control.armed,
        "telemetry": control.telemetry.value,
        "measure": "KV cache" if device and device.kind == "engine" else "GPU",
        "utilization_pct": _load_pct(device) if device else None,
        "power_w": device.power_w if device else None,
        "tiers": throttle.settings.control.tiers,
        "rate_rps": {priority.label: snapshot.rate_limit_rps[priority] for priority in Priority},
        "concurrency": None
        if view is None
        else {
            "in_flight": view.in_flight,
            "limit": min(view.limit, view.memory_cap),
            "service_rps": view.service_rps,
            "waiting": {priority.label: view.waiting[priority] for priority in Priority},
        },
        "store": None
        if store is None
        else {
            "decisions": store.stats.sent,
            "round_trips": store.stats.calls,
            "deny_cache_hits": store.deny_cache_hits,
            "fallbacks": sum(store.fallbacks.values()),
        },
    }


def _load_pct(device: GpuSample) -> float | None:
    """Return the utilization of a GPU, or the fill of an engine's cache."""
    filled = device.kv_used_ratio
    return device.utilization_pct if filled is None else 100.0 * filled


def build(
    settings: Mapping[str, str], speed: float | None, length_s: float, *, llm: bool = False
) -> ThrottleMiddleware:
    """Build the whole application; ``speed`` is that of a trace, None for the phases."""
    sim: SimulatedLlm | SimulatedGpu = SimulatedLlm(LLM_SPEC) if llm else SimulatedGpu(gpu_spec(speed))
    throttle = Throttle(Settings.from_env(settings), gpu=sim)
    downstream = Downstream(throttle, length_s, time.monotonic)
    inner = sim if isinstance(sim, SimulatedLlm) else service(sim)
    return ThrottleMiddleware(DemoService(inner, throttle, downstream), throttle=throttle)


def with_page(app: ThrottleMiddleware) -> ASGIApp:
    """Put the live page of the throttle in front of the application."""
    page = status_app(app.throttle)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PAGE_PATH):
            await page({**scope, "root_path": PAGE_PATH}, receive, send)
        else:
            await app(scope, receive, send)

    return served


def main() -> None:
    """Serve with the configuration from the first line of the standard input."""
    config = read_config()
    app = build(config["environment"], config["speed"], config["length_s"], llm=config.get("llm", False))
    serve(with_page(app), connections=CONNECTIONS)


if __name__ == "__main__":
    main()
