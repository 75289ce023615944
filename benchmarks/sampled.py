"""Services of `benchmarks.request_latency`, one process each: ``python -m benchmarks.sampled``.

Each is a minimal app behind the whole throttle, which reads eight devices of the simulated NVML library, or
none.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from benchmarks import asgi_rows
from benchmarks.asgi_rows import App, Scope
from examples.demo.process import read_config, serve

SNAPSHOT_PATH = "/sampled"
"""Path of the view of the throttle; it bypasses the measured middleware."""

UNREACHABLE_LIMITS: dict[str, Any] = {"user_limit": "10000000/second", "rate_mid_rps": 1e6}
"""Limits that no request of the benchmark reaches."""

CONNECTIONS = 64


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a service."""

    interval_s: float | None
    """Seconds from one reading to the next; None: no sampling."""
    state: str
    """State file of the simulated library."""


def throttle_of(options: ServiceOptions) -> Throttle:
    """Build a throttle over all devices of the simulated library."""
    if options.interval_s is None:
        return Throttle(Settings(gpu="none", **UNREACHABLE_LIMITS))
    os.environ["FAKE_NVML_FILE"] = options.state
    return Throttle(Settings(gpu=("nvml",), sample_interval_s=options.interval_s, **UNREACHABLE_LIMITS))


def with_snapshot(app: App, throttle: Throttle) -> App:
    """Wrap the app, with the view of the throttle on a path of its own."""

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != SNAPSHOT_PATH:
            await app(scope, receive, send)
            return
        seen = throttle.snapshot()
        shown = {
            "telemetry": seen.control.telemetry,
            "judged": 0 if seen.view is None else len(seen.view.verdicts),
            "notes": sorted({note for row in seen.devices for note in row.notes}),
            "sources": [source.state for source in seen.sources],
        }
        body = json.dumps(shown).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return outermost


def main() -> None:
    """Serve with the options in the first line of standard input."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    throttle = throttle_of(ServiceOptions(**read_config()))
    app = ThrottleMiddleware(asgi_rows.bare, throttle=throttle)
    serve(with_snapshot(app, throttle), connections=CONNECTIONS)
    throttle.stop()


if __name__ == "__main__":
    main()
