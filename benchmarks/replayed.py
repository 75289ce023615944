"""Service of `benchmarks.replay`: ``python -m benchmarks.replayed``.

The simulated LLM service behind the throttle; its GPU is faster by the same factor as the replay. The control
responds at once and has no middleware.
"""

from __future__ import annotations

import logging
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing.simulated import LlmSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.types import Clock
from benchmarks.asgi_rows import App
from examples.demo.process import read_config, serve

CONNECTIONS = 2_000

SETTINGS: dict[str, Any] = {
    "policy": "adaptive",
    "slo_s": 1.0,
    "user_limit": "60/second",
    "identity": "header:x-client",
    "key_secret": "a secret of this benchmark",
    "priority_header_trust": "any",
    "retry_jitter": 0.0,
}


def throttled(speed: float, clock: Clock | None = None) -> tuple[App, Throttle]:
    """Build the service behind a throttle; with a clock of its own, sampling is manual."""
    spec = SimulatedGpuSpec(work=LlmSpec().faster(speed))
    settings = Settings(**SETTINGS)
    if clock is None:
        sim = SimulatedGpu(spec)
        throttle = Throttle(settings, gpu=sim)
    else:
        sim = SimulatedGpu(spec, clock=clock)
        throttle = Throttle(settings, gpu=sim, sampling="manual", clock=clock)
    return ThrottleMiddleware(service(sim), throttle=throttle), throttle


async def instant(scope: Any, receive: Any, send: Any) -> None:
    """Respond at once."""
    if scope["type"] != "http":
        raise NotImplementedError
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve with the options in the first line of standard input."""
    logging.getLogger("autoglm_throttle").addHandler(logging.NullHandler())
    service_options = read_config()
    serve(
        instant if service_options["control"] else throttled(service_options["speed"])[0],
        connections=CONNECTIONS,
    )


if __name__ == "__main__":
    main()
