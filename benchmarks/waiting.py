"""Cost of a queued request relative to one admitted at once; CPU of the process, without a server.

Run: ``python -m benchmarks.waiting``. Half of the requests get a slot, the other half is queued, and each
request has a body of one part. Short waits end before the detection of disconnects starts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle._runtime import wakeup
from benchmarks import asgi_rows, harness

REQUESTS = 400
PART = {"type": "http.request", "body": b"{}", "more_body": False}


def receive() -> Callable[[], Awaitable[dict[str, Any]]]:
    """Build the receive of a client that sends its request and stays connected."""
    parts = [PART]

    async def one() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    return one


async def ignore(_message: Any) -> None:
    """Replace the send of a server."""


def cpu_per_request(slots: int, watch_delay_s: float = wakeup.DISCONNECT_WATCH_DELAY_S) -> float:
    """Measure the CPU seconds per request of concurrent requests with this number of slots."""

    async def run() -> float:
        opened = asyncio.Event()

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await opened.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

        throttle = Throttle(
            Settings(
                policy="concurrency",
                gpu="none",
                rate_mid_rps=1e6,
                slo_s=60,
                inflight_start=slots,
                queue_max=REQUESTS,
            )
        )
        throttle.start()
        wrapped = ThrottleMiddleware(app, throttle=throttle)
        scopes = asgi_rows.scopes()[:REQUESTS]
        begun = time.process_time()
        tasks = [asyncio.ensure_future(wrapped(scope, receive(), ignore)) for scope in scopes]
        for _ in range(4):
            await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(*tasks)
        spent = time.process_time() - begun
        snapshot = throttle.snapshot()
        waited = sum(count for counts in snapshot.queue_time.values() for count in counts.counts)
        if waited != REQUESTS - slots or any(snapshot.active.values()):
            raise RuntimeError(f"another job was done: {waited} waited")
        return spent / REQUESTS

    usual, wakeup.DISCONNECT_WATCH_DELAY_S = wakeup.DISCONNECT_WATCH_DELAY_S, watch_delay_s
    try:
        return asyncio.run(run())
    finally:
        wakeup.DISCONNECT_WATCH_DELAY_S = usual


ROWS = {
    "nobody waits": lambda: cpu_per_request(REQUESTS),
    "half wait, shortly": lambda: cpu_per_request(REQUESTS // 2),
    "half wait, with an ear for the client": lambda: cpu_per_request(REQUESTS // 2, 0.0),
}


def main() -> None:
    """Measure, print and write the record."""
    options = harness.arguments(__doc__ or "", rounds=15)
    seen = harness.interleave(ROWS, options.rounds)
    control = seen["nobody waits"]
    added = {
        name: 2e6 * statistics.median(a - b for a, b in zip(values, control, strict=True))
        for name, values in seen.items()
        if values is not control
    }
    print(f"{'nobody waits':40}{statistics.median(control) * 1e6:8.1f} us each")
    for name, micros in added.items():
        print(f"{name:40}{micros:8.1f} us more for each that waits")
    result = {
        **harness.machine("anyio"),
        "rounds": options.rounds,
        "control_us": statistics.median(control) * 1e6,
        "added_us": added,
    }
    print(harness.line(result))
    if options.write:
        harness.keep("waiting", result)


if __name__ == "__main__":
    main()
