"""Services of `benchmarks.gpu_closed_loop`, one process each: ``python -m benchmarks.gpu.served``.

Each is the batching service behind the middleware, behind a peer with the right limit set by hand, or without
middleware. An observer in the same process reads the device, and reports on a path of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.gpu.host import HostSampler
from autoglm_throttle.types import Policy
from benchmarks import asgi_rows, overloaded
from benchmarks.asgi_rows import App, Scope
from benchmarks.gpu.batcher import Batcher
from benchmarks.gpu.engine import Engine, with_telemetry
from benchmarks.gpu.observer import Observer
from benchmarks.gpu.work import Job
from examples.demo.process import read_config, serve

OBSERVATIONS_PATH = "/gpu/observations"
"""Path of the observations; it bypasses the measured middleware."""

CONNECTIONS = overloaded.CONNECTIONS


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service."""

    row: str
    job: Job
    slo_s: float
    interval_s: float
    capacity_rps: float
    """Measured capacity, for peers with a limit set by hand."""


@dataclass(frozen=True)
class Deployment:
    """The service with its middleware."""

    app: App
    throttle: Throttle | None = None


def ours(app: App, sources: tuple[str, ...], options: ServiceOptions, policy: Policy) -> Deployment:
    """Wrap the app in the throttle, with only the GPU source and the objective set."""
    chosen = Settings(
        gpu=sources,
        policy=policy,
        slo_s=options.slo_s,
        sample_interval_s=options.interval_s,
        priority_header_trust="any",
    )
    throttle = Throttle(chosen)
    return Deployment(ThrottleMiddleware(app, throttle=throttle), throttle)


def _limits(app: App, _sources: tuple[str, ...], options: ServiceOptions) -> Deployment:
    return Deployment(
        asgi_rows.limits_fixed(app=app, limit=max(1, round(options.capacity_rps)), per="second")
    )


ROWS: dict[str, tuple[str, Callable[[App, tuple[str, ...], ServiceOptions], Deployment]]] = {
    "none": ("no middleware", lambda app, _sources, _options: Deployment(app)),
    "adaptive": (
        "autoglm_throttle, adaptive",
        lambda app, sources, options: ours(app, sources, options, Policy.ADAPTIVE),
    ),
    "tiers": (
        "autoglm_throttle, tiers",
        lambda app, sources, options: ours(app, sources, options, Policy.TIERS),
    ),
    "full": (
        f"concurrency limit {overloaded.INSIDE}",
        lambda app, _sources, _options: Deployment(overloaded.full(app)),
    ),
    "limits": ("limits, fixed window of 1 s", _limits),
}
"""Name -> title and builder of the deployment."""


def own(throttle: Throttle) -> dict[str, Any]:
    """Return the state of the throttle itself."""
    shown = throttle.snapshot()
    control, limiter = shown.control, shown.concurrency
    return {
        "factor": control.factor,
        "why": control.cause.value,
        "budget_rps": control.budget_rps,
        "telemetry": control.telemetry.value,
        "signal": control.signal.value,
        "limit": None if limiter is None else min(limiter.limit, limiter.memory_cap),
        "service_rps": None if limiter is None else limiter.service_rps,
        "verdicts": []
        if shown.view is None
        else [one.condition.value for one in shown.view.verdicts.values()],
        "controller_errors": shown.controller_errors,
    }


def with_observations(deployment: Deployment, observer: Observer) -> App:
    """Wrap the app, with the observations on a path of their own."""

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != OBSERVATIONS_PATH:
            await deployment.app(scope, receive, send)
            return
        shown = observer.as_document() | {
            "own": None if deployment.throttle is None else own(deployment.throttle)
        }
        body = json.dumps(shown).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return outermost


def main() -> None:
    """Serve with the options in the first line of standard input."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    given = read_config()
    options = ServiceOptions(**{**given, "job": Job(**given["job"])})
    work, sources = with_telemetry(Engine(options.job), options.job)
    host = HostSampler()
    batcher = Batcher(work, options.slo_s, host.read)
    observer = Observer(sources, options.interval_s, {"witness": batcher.stats})
    observer.start()
    deployment = ROWS[options.row][1](batcher, sources, options)
    serve(overloaded.with_cpu_time(with_observations(deployment, observer)), connections=CONNECTIONS)
    observer.close()
    work.close()


if __name__ == "__main__":
    main()
