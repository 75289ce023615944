"""Sends requests through a limiter, under callgrind or by the clock; started by `benchmarks.instructions`.

``instructions_driver.py APP LOAD...`` prints nothing. Each call of ``os.getppid`` closes one callgrind
profile, so that the profiles are, in this order: for every state its preparation and its measured requests.
``instructions_driver.py APP seconds`` prints CPU time and memory as JSON. Of the package it uses public names
alone, because the same file also drives older commits.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

App = Callable[[Any, Any, Any], Awaitable[None]]

ATTACHMENTS = ("none", "address", "identify", "header")
"""Ways to name the caller: no user limit, peer address, an ``identify=`` callable, header ``x-api-key``."""

TRACED = "traced"
"""As ``address``, with the API of OpenTelemetry imported and no SDK."""

LOADS: dict[str, tuple[str, ...]] = {
    "fresh": ("fresh",),
    "few": ("steady, 50 callers",),
    "full": ("steady",),
    "refused": ("refused",),
    "many": ("100,000 in turn", "100,000 at random"),
}
"""Load -> its measured states.

``fresh``: each request comes from a new caller. ``few``, ``full``: the windows of 50 and of 1,000 callers are
full of earlier requests, and one of them expires whenever a new one arrives. ``refused``: 1,000 callers have
used up their limits. ``many``: 100,000 callers send one request each in a window. Together they are about as
fast as those of ``full``, so that what is done once in a while is done as often.
"""

REQUESTS = 1000
LIMIT, WINDOW_S = 100, 60.0
FEW, CALLERS, MANY = 50, 1000, 100_000
BLOCK, ROUNDS = 4000, 15
"""Requests of a block, and pairs of blocks, of the measurement by the clock."""

TOGGLE = "BENCHMARK_TOGGLE"
"""Variable that is set if callgrind counts only between the marks: all else runs ten times as fast."""

HEADERS = (
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"benchmark"),
)


class Clock:
    """Monotonic seconds that move only between requests.

    ``read`` is a call of C, as ``time.monotonic`` is: a method would cost twice as many instructions, which
    nobody has in service.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.read: Callable[[], float] = partial(getattr, self, "now")


def scope(number: int) -> dict[str, Any]:
    """Build the scope of a caller's request."""
    key = (b"x-api-key", b"key-%d" % number)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/predict",
        "raw_path": b"/predict",
        "query_string": b"",
        "root_path": "",
        "headers": [*HEADERS, key],
        "client": (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 40000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def bare(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer with two bytes."""
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def receive() -> dict[str, Any]:
    """Return an empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: dict[str, Any]) -> None:
    """Fail on any status but 200: another job would be counted."""
    if message.get("status", 200) != 200:
        raise RuntimeError(f"a request was answered with {message['status']}")


async def send_refused(message: dict[str, Any]) -> None:
    """Fail on any status but 429."""
    if message.get("status", 429) != 429:
        raise RuntimeError(f"a request was answered with {message['status']}")


def limited(attachment: str, clock: Clock) -> App:
    """Wrap the bare app."""
    from autoglm_throttle import Caller, Settings, Throttle, ThrottleMiddleware

    chosen: dict[str, Any] = {"gpu": "none", "rate_mid_rps": 1e6}
    if attachment != "none":
        chosen["user_limit"] = f"{LIMIT}/minute"
    if attachment == "header":
        chosen["identity"] = "header:x-api-key"
        chosen["address_factor"] = 1e6
    throttle = Throttle(Settings(**chosen), sampling="manual", clock=clock.read)

    def identify(scope: Any) -> Any:
        return Caller(scope["client"][0], verified=True)

    return ThrottleMiddleware(
        bare, throttle=throttle, identify=identify if attachment == "identify" else None
    )


def make(name: str, clock: Clock) -> App:
    """Build the app of a row: bare, one of ours, or a peer."""
    if name == "bare":
        return bare
    if name in ATTACHMENTS:
        return limited(name, clock)
    if name == TRACED:
        import opentelemetry.trace  # noqa: F401 - the middleware looks for it among the loaded modules

        return limited("address", clock)
    from benchmarks.instructions_peers import peer

    return peer(name, bare, LIMIT, clock.read)


def run(call: Any) -> None:
    """Step a coroutine that never waits to its end; no event loop is counted."""
    coroutine: Coroutine[Any, Any, None] = call
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("the app waited for something")


def drive(
    app: App, clock: Clock, scopes: Iterable[dict[str, Any]], step_s: float, answer: Any = send
) -> None:
    """Send one request for each scope, some seconds apart."""
    for each in scopes:
        clock.now += step_s
        run(app(each, receive, answer))


def instrument(state: str) -> None:
    """Switch the counting of callgrind on or off, if it is to be switched."""
    if TOGGLE in os.environ:
        switch = subprocess.Popen(
            ["vgdb", f"--pid={os.getpid()}", "instrumentation", state],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while switch.poll() is None:  # a process that waits could be reached with the right to trace it only
            pass
        if switch.returncode:
            raise RuntimeError(f"vgdb failed with {switch.returncode}")


def measure(app: App, clock: Clock, numbers: Iterable[int], step_s: float, answer: Any = send) -> None:
    """Send requests of these callers between two marks."""
    scopes = [scope(number) for number in numbers]
    gc.collect()
    gc.disable()  # a collection in the middle of one case would be counted as its cost
    instrument("on")
    os.getppid()
    drive(app, clock, scopes, step_s, answer)
    os.getppid()
    instrument("off")
    gc.enable()


def fill(app: App, clock: Clock, callers: int, rounds: int, step_s: float) -> None:
    """Let some callers send requests in turn."""
    drive(app, clock, (scope(number) for _ in range(rounds) for number in range(callers)), step_s)


def fresh(app: App, clock: Clock) -> None:
    """Measure requests of callers without an earlier one."""
    drive(app, clock, (scope(1_000_000 + number) for number in range(100)), 0.01)
    measure(app, clock, range(REQUESTS), 0.01)


def steady(app: App, clock: Clock, callers: int) -> None:
    """Measure callers with full windows: each stays four a minute below its limit, so none is rejected."""
    step_s = WINDOW_S / (LIMIT - 4) / callers
    fill(app, clock, callers, LIMIT, step_s)
    measure(app, clock, (number % callers for number in range(REQUESTS)), step_s)


def refused(app: App, clock: Clock) -> None:
    """Measure rejections of callers that have used up their limits."""
    fill(app, clock, CALLERS, LIMIT, 0.0)
    measure(app, clock, range(REQUESTS), 0.0, send_refused)


def many(app: App, clock: Clock) -> None:
    """Fill a window with one request of each caller, then measure callers in turn and at random."""
    step_s = 1.001 * WINDOW_S / MANY
    fill(app, clock, MANY, 1, step_s)
    measure(app, clock, range(REQUESTS), step_s)
    drive(app, clock, map(scope, at_random(MANY, MANY, 1)), step_s)
    measure(app, clock, at_random(MANY, REQUESTS, 2), step_s)


def at_random(callers: int, count: int, seed: int) -> Iterator[int]:
    """Draw callers, the same ones for each seed."""
    draw = random.Random(seed)
    return (draw.randrange(callers) for _ in range(count))


CASES: dict[str, Callable[[App, Clock], None]] = {
    "fresh": fresh,
    "few": partial(steady, callers=FEW),
    "full": partial(steady, callers=CALLERS),
    "refused": refused,
    "many": many,
}
"""Load -> function that measures its states."""


def seconds(name: str) -> dict[str, float]:
    """Measure CPU time in turns of blocks of requests, and the memory of 100,000 callers.

    Returns:
        microseconds that full windows of 1,000 callers add to a request of the bare app, the times with
        100,000 callers over those, and megabytes. All are medians.
    """
    gc.disable()
    filled(name, 1, 1)  # the imports
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    crowd = filled(name, MANY, 1)
    gc.collect()
    memory_mb = (tracemalloc.get_traced_memory()[0] - before) / 1e6
    tracemalloc.stop()
    # A rate that leaves each caller four a minute below its limit.
    full = filled(name, CALLERS, LIMIT, LIMIT - 4)
    turn = [number % CALLERS for number in range(BLOCK)]
    spent: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        blocks: dict[str, tuple[Filled, Iterable[int]]] = {
            "bare": ((bare, Clock(), 0.0), turn),
            "full": (full, turn),
            "100,000 in turn": (crowd, [(number * BLOCK + at) % MANY for at in range(BLOCK)]),
            "100,000 at random": (crowd, at_random(MANY, BLOCK, number)),
        }
        for block, ((app, clock, step_s), callers) in blocks.items():
            scopes = [scope(caller) for caller in callers]
            begun_s = time.process_time()
            drive(app, clock, scopes, step_s)
            spent.setdefault(block, []).append(time.process_time() - begun_s)
        gc.collect()
    gc.enable()
    added_s = [each - base for each, base in zip(spent["full"], spent["bare"], strict=True)]
    found = {"added_us": statistics.median(added_s) / BLOCK * 1e6}
    for order in LOADS["many"]:
        over = [each / base for each, base in zip(spent[order], spent["full"], strict=True)]
        found[order] = statistics.median(over)
    return found | {"memory_mb": memory_mb}


Filled = tuple[App, Clock, float]
"""An app whose callers have sent requests, its clock, and the seconds between two requests."""


def filled(name: str, callers: int, rounds: int, each: int = 1) -> Filled:
    """Build an app and let callers send requests in turn, each so many in a window."""
    clock = Clock()
    app, step_s = make(name, clock), WINDOW_S / callers / each
    fill(app, clock, callers, rounds, step_s)
    return app, clock, step_s


async def main() -> None:
    """Run one app under each load, in an event loop whose clock stands still, as peers need one."""
    name, *loads = sys.argv[1:]
    run(bare(scope(0), receive, send))
    if loads == ["seconds"]:
        print(json.dumps(seconds(name)))
        return
    for load in loads:
        clock = Clock()
        CASES[load](make(name, clock), clock)


if __name__ == "__main__":
    asyncio.run(main())
