"""Cost of a queued request relative to one admitted at once; CPU of the process, without a server.

Run: ``python -m benchmarks.waiting``. Half of the requests get a slot, the other half is queued, and each
request has a body of one part. Short waits end before the detection of disconnects starts.

Then 10,000 clients wait for one slot: the time until all of them are queued and their disconnects are
watched, and the memory of each. The control is the app alone, in which they wait as well.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.admission import verdicts
from benchmarks import asgi_rows, harness

REQUESTS = 400
PART = {"type": "http.request", "body": b"{}", "more_body": False}

MANY = 10_000
WATCH_S = 0.2
"""Longer than the delay of the detection of disconnects."""

CASES: dict[str, str | None] = {"app alone": None, "no user limit": "off", "with a user limit": "1000/minute"}
"""User limit of the throttle in front of many; None: there is no throttle."""


class Client:
    """A client that sends its request and stays connected; its server is like uvicorn."""

    def __init__(self) -> None:
        self.is_read = False
        self._leaves = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Return the request, then wait for the disconnect."""
        if self.is_read:
            await self._leaves.wait()
        self.is_read = True
        return PART


async def ignore(_message: Any) -> None:
    """Replace the send of a server."""


def waiting_app(opened: asyncio.Event) -> asgi_rows.App:
    """Build an app that answers once it is opened."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await opened.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    return app


def limited(app: asgi_rows.App, slots: int, queue_max: int, **settings: Any) -> ThrottleMiddleware:
    """Limit an app to a number of slots, all of which are there from the start."""
    usual: dict[str, Any] = {"policy": "concurrency", "gpu": "none", "rate_mid_rps": 1e6, "slo_s": 60}
    throttle = Throttle(Settings(**usual | {"inflight_start": slots, "queue_max": queue_max} | settings))
    throttle.start()
    return ThrottleMiddleware(app, throttle=throttle)


def cpu_per_request(slots: int, watch_delay_s: float = verdicts.DISCONNECT_WATCH_DELAY_S) -> float:
    """Measure the CPU seconds per request of concurrent requests with this number of slots."""

    async def run() -> float:
        opened = asyncio.Event()
        answer = waiting_app(opened)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await answer(scope, receive, send)

        wrapped = limited(app, slots, REQUESTS)
        scopes = asgi_rows.scopes()[:REQUESTS]
        begun = time.process_time()
        tasks = [asyncio.ensure_future(wrapped(scope, Client().receive, ignore)) for scope in scopes]
        for _ in range(4):
            await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(*tasks)
        spent = time.process_time() - begun
        snapshot = wrapped.throttle.snapshot()
        waited = sum(count for counts in snapshot.queue_time.values() for count in counts.counts)
        if waited != REQUESTS - slots or any(snapshot.active.values()):
            raise RuntimeError(f"another job was done: {waited} waited")
        return spent / REQUESTS

    usual, verdicts.DISCONNECT_WATCH_DELAY_S = verdicts.DISCONNECT_WATCH_DELAY_S, watch_delay_s
    try:
        return asyncio.run(run())
    finally:
        verdicts.DISCONNECT_WATCH_DELAY_S = usual


async def many(measure: Callable[[], float], user_limit: str | None) -> float:
    """Return what each of many clients adds to a figure until all are queued and watched."""
    opened = asyncio.Event()
    app = waiting_app(opened)
    clients = [Client() for _ in range(MANY)]
    scopes = asgi_rows.scopes()[:MANY]
    for number, scope in enumerate(scopes):
        scope["client"] = (f"10.1.{number >> 8}.{number & 255}", 40000)
    if user_limit is not None:
        app = limited(app, 1, MANY, slo_s=3600, wait_budget=1, user_limit=user_limit, inflight_floor=1)
        await queue_two(app, opened)
    gc.collect()
    before = measure()
    tasks = [
        asyncio.ensure_future(app(scope, client.receive, ignore))
        for scope, client in zip(scopes, clients, strict=True)
    ]
    for _ in range(4):  # the arrival alone takes about one of them
        await asyncio.sleep(WATCH_S)
    added = measure() - before
    watched = sum(client.is_read for client in clients)
    if watched != (0 if user_limit is None else MANY - 1):
        raise RuntimeError(f"another job was done: {watched} clients are watched")
    opened.set()
    await asyncio.gather(*tasks)
    return added / MANY


async def queue_two(app: asgi_rows.App, opened: asyncio.Event) -> None:
    """Queue two requests, one after another, so that all code has run once."""
    for _ in range(2):
        scopes = asgi_rows.scopes()[:2]
        tasks = [asyncio.ensure_future(app(scope, Client().receive, ignore)) for scope in scopes]
        await asyncio.sleep(WATCH_S)
        opened.set()
        await asyncio.gather(*tasks)
        opened.clear()


def many_us(user_limit: str | None) -> float:
    """Measure the CPU microseconds of each."""
    return 1e6 * asyncio.run(many(time.process_time, user_limit))


def many_bytes(user_limit: str | None) -> float:
    """Measure the bytes of each."""
    tracemalloc.start()
    return asyncio.run(many(traced_bytes, user_limit))


def traced_bytes() -> float:
    """Return the bytes in use, without garbage."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def alone(measure: Callable[[str | None], float], user_limit: str | None) -> float:
    """Measure in a process of its own: the garbage collector looks at all that the process holds."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, user_limit).result()


def measure_many(rounds: int) -> dict[str, dict[str, float]]:
    """Measure many waiting clients, and print the figures."""
    seen = harness.interleave({name: partial(alone, many_us, limit) for name, limit in CASES.items()}, rounds)
    found = {
        name: {"us": statistics.median(seen[name]), "bytes": alone(many_bytes, limit)}
        for name, limit in CASES.items()
    }
    for name, each in found.items():
        text = f"{MANY:,} wait, {name}"
        print(f"{text:40}{each['us']:8.1f} us and {each['bytes']:,.0f} bytes for each")
    return found


ROWS = {
    "nobody waits": lambda: cpu_per_request(REQUESTS),
    "half wait, shortly": lambda: cpu_per_request(REQUESTS // 2),
    "half wait, and are watched": lambda: cpu_per_request(REQUESTS // 2, 0.0),
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
        "many": measure_many(options.rounds),
    }
    print(harness.line(result))
    if options.write:
        harness.keep("waiting", result)


if __name__ == "__main__":
    main()
