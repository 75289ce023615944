"""The services that `benchmarks.gpu_closed_loop` drives, each one a ``python -m benchmarks.gpu.served``.

Each is the batching service behind the middleware, behind a peer with the right number set by hand, or behind
nothing. A witness in the same process watches the card, and tells on a path of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.gpu.host import HostSampler
from autoglm_throttle.traffic.demo.serving import read_config, serve
from autoglm_throttle.types import Policy
from benchmarks import asgi_rows, overloaded
from benchmarks.asgi_rows import App, Scope
from benchmarks.gpu.batcher import Batcher
from benchmarks.gpu.engine import Engine, seen
from benchmarks.gpu.watch import Watch
from benchmarks.gpu.work import Job

TOLD_PATH = "/gpu/told"
"""What the witness has seen; outside of whatever is measured."""

CONNECTIONS = overloaded.CONNECTIONS


@dataclass(frozen=True)
class Asked:
    """What is to be served."""

    row: str
    job: Job
    slo_s: float
    interval_s: float
    capacity_rps: float
    """As it was measured: for those whose number must be set by hand."""


@dataclass(frozen=True)
class Door:
    """What stands in front of the service."""

    app: App
    throttle: Throttle | None = None


def ours(app: App, sources: tuple[str, ...], asked: Asked, policy: Policy) -> Door:
    """Behind the throttle, with nothing set but where the GPU is and how long an answer may take."""
    chosen = Settings(
        gpu=sources,
        policy=policy,
        slo_s=asked.slo_s,
        sample_interval_s=asked.interval_s,
        priority_header_trust="any",
    )
    throttle = Throttle(chosen)
    return Door(ThrottleMiddleware(app, throttle=throttle), throttle)


def _limits(app: App, _sources: tuple[str, ...], asked: Asked) -> Door:
    return Door(asgi_rows.limits_fixed(app=app, limit=max(1, round(asked.capacity_rps)), per="second"))


ROWS: dict[str, tuple[str, Callable[[App, tuple[str, ...], Asked], Door]]] = {
    "none": ("no middleware", lambda app, _sources, _asked: Door(app)),
    "adaptive": (
        "autoglm_throttle, adaptive",
        lambda app, sources, asked: ours(app, sources, asked, Policy.ADAPTIVE),
    ),
    "tiers": (
        "autoglm_throttle, tiers",
        lambda app, sources, asked: ours(app, sources, asked, Policy.TIERS),
    ),
    "full": (
        f"concurrency limit {overloaded.INSIDE}",
        lambda app, _sources, _asked: Door(overloaded.full(app)),
    ),
    "limits": ("limits, fixed window of 1 s", _limits),
}
"""Name -> title and door."""


def own(throttle: Throttle) -> dict[str, Any]:
    """What the throttle itself makes of the card."""
    shown = throttle.snapshot()
    regime, gate = shown.control, shown.concurrency
    return {
        "factor": regime.factor,
        "why": regime.cause.value,
        "budget_rps": regime.budget_rps,
        "telemetry": regime.telemetry.value,
        "signal": regime.signal.value,
        "limit": None if gate is None else min(gate.limit, gate.memory_cap),
        "service_rps": None if gate is None else gate.service_rps,
        "verdicts": []
        if shown.view is None
        else [one.condition.value for one in shown.view.verdicts.values()],
        "controller_errors": shown.controller_errors,
    }


def told(door: Door, watch: Watch) -> App:
    """The app, with what the witness has seen."""

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != TOLD_PATH:
            await door.app(scope, receive, send)
            return
        shown = watch.told() | {"own": None if door.throttle is None else own(door.throttle)}
        body = json.dumps(shown).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return outermost


def main() -> None:
    """Serve what the first line of the standard input asks for."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    given = read_config()
    asked = Asked(**{**given, "job": Job(**given["job"])})
    work, sources = seen(Engine(asked.job), asked.job)
    host = HostSampler()
    batcher = Batcher(work, asked.slo_s, host.read)
    watch = Watch(sources, asked.interval_s, {"witness": batcher.told})
    watch.start()
    door = ROWS[asked.row][1](batcher, sources, asked)
    serve(overloaded.told(told(door, watch)), connections=CONNECTIONS)
    watch.close()
    work.close()


if __name__ == "__main__":
    main()
