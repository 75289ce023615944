"""Sends requests through the middleware under callgrind; started by `benchmarks.instructions`.

Prints nothing. Each call of ``os.getppid`` closes one callgrind profile, so that the profiles are, in this
order: the start, then for every case its preparation and its measured requests. It uses public names alone,
because the same file also drives older commits.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

App = Callable[[Any, Any, Any], Awaitable[None]]

ATTACHMENTS = ("none", "address", "identify", "header")
"""Ways to name the caller: no user limit, peer address, an ``identify=`` callable, header ``x-api-key``."""

STATES = ("fresh", "steady")
"""``fresh``: every request comes from a new caller. ``steady``: the window of each caller is full of earlier
requests, and one of them expires whenever a new one arrives."""

REQUESTS = 1000
LIMIT, WINDOW_S = 100, 60.0
CALLERS = 50
SPACING_S = WINDOW_S / (LIMIT - 4) / CALLERS
"""Seconds between two requests: each caller stays four a minute below its limit, so none is rejected."""

HEADERS = (
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"benchmark"),
)


class Clock:
    """Monotonic seconds that move only between requests."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def scope(number: int) -> dict[str, Any]:
    """Build the scope of a caller's request."""
    key = (b"x-api-key", b"key-%d" % number)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/predict",
        "raw_path": b"/v1/predict",
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


def limited(attachment: str, clock: Clock) -> App:
    """Wrap the bare app."""
    from autoglm_throttle import Caller, Settings, Throttle, ThrottleMiddleware

    chosen: dict[str, Any] = {"gpu": "none", "rate_mid_rps": 1e6}
    if attachment != "none":
        chosen["user_limit"] = f"{LIMIT}/minute"
    if attachment == "header":
        chosen["identity"] = "header:x-api-key"
        chosen["address_factor"] = 1e6
    throttle = Throttle(Settings(**chosen), sampling="manual", clock=clock)

    def identify(scope: Any) -> Any:
        return Caller(scope["client"][0], verified=True)

    return ThrottleMiddleware(
        bare, throttle=throttle, identify=identify if attachment == "identify" else None
    )


def run(call: Any) -> None:
    """Step a coroutine that never waits to its end; no event loop is counted."""
    coroutine: Coroutine[Any, Any, None] = call
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("the app waited for something")


def drive(app: App, clock: Clock, scopes: Iterator[dict[str, Any]]) -> None:
    """Send one request for each scope."""
    for each in scopes:
        clock.now += SPACING_S
        run(app(each, receive, send))


def case(app: App, clock: Clock, state: str) -> None:
    """Prepare a state, then send the measured requests between two marks."""
    if state == "steady":
        callers = [scope(number) for number in range(CALLERS)]
        warm_up = [callers[number % CALLERS] for number in range(CALLERS * LIMIT)]
        measured = [callers[number % CALLERS] for number in range(REQUESTS)]
    else:
        warm_up = [scope(1_000_000 + number) for number in range(100)]
        measured = [scope(number) for number in range(REQUESTS)]
    drive(app, clock, iter([dict(each) for each in warm_up]))
    fresh_scopes = [dict(each) for each in measured]
    gc.collect()
    gc.disable()  # a collection in the middle of one case would be counted as its cost
    os.getppid()
    drive(app, clock, iter(fresh_scopes))
    os.getppid()
    gc.enable()


def main() -> None:
    """Run the bare app, then every attachment in both states."""
    run(bare(scope(0), receive, send))
    os.getppid()
    for state in STATES:
        case(bare, Clock(), state)
    for attachment in ATTACHMENTS:
        for state in STATES:
            clock = Clock()
            case(limited(attachment, clock), clock, state)


if __name__ == "__main__":
    main()
