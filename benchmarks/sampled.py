"""The services that `benchmarks.bystander` drives, one process each: ``python -m benchmarks.sampled``.

Each is the cheapest app there can be behind the whole throttle, which reads eight cards of the stand-in for
NVIDIA's library, or none.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.traffic.demo.serving import read_config, serve
from benchmarks import asgi_rows
from benchmarks.asgi_rows import App, Scope

TOLD_PATH = "/sampled"
"""What the throttle sees; outside of whatever is measured."""

UNLIMITED: dict[str, Any] = {"user_limit": "10000000/second", "rate_mid_rps": 1e6}
"""Everybody is let in, through every limit."""

CONNECTIONS = 64


@dataclass(frozen=True)
class Asked:
    """What is to be served."""

    interval_s: float | None
    """From one reading to the next; None: nobody reads."""
    state: str
    """The file that says how the stand-in is."""


def throttle_of(asked: Asked) -> Throttle:
    """A throttle over all cards of the stand-in."""
    if asked.interval_s is None:
        return Throttle(Settings(gpu="none", **UNLIMITED))
    os.environ["FAKE_NVML_FILE"] = asked.state
    return Throttle(Settings(gpu=("nvml",), sample_interval_s=asked.interval_s, **UNLIMITED))


def told(app: App, throttle: Throttle) -> App:
    """The app, with what the throttle sees."""

    async def outermost(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != TOLD_PATH:
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
    """Serve what the first line of the standard input asks for."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    throttle = throttle_of(Asked(**read_config()))
    app = ThrottleMiddleware(asgi_rows.bare, throttle=throttle)
    serve(told(app, throttle), connections=CONNECTIONS)
    throttle.stop()


if __name__ == "__main__":
    main()
