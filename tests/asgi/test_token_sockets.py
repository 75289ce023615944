"""Settlement of tokens under uvicorn, with clients that leave over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle
from tests.asgi.test_token_paths import (
    BODY,
    EVENTS,
    INPUT,
    JSON,
    OUTPUT,
    PATH,
    REPORTED,
    TOKEN,
    USAGE,
    left,
    limited,
    part,
    start,
)
from tests.gateway.loopback import under_uvicorn

HANG_S = 60.0
HEAD = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(BODY))
LEAVE = object()  # The client leaves, and the app waits for its disconnect
PREFILL = object()  # The same, when nothing was sent yet

# Messages and errors of the app, and the tokens that are charged.
PATHS: dict[str, tuple[list[Any], tuple[int, int]]] = {
    "normal end": ([start(), part(TOKEN), part(USAGE, more=False)], REPORTED),
    "before the head": ([PREFILL], (INPUT, 0)),
    "before the first token": ([start(), part(b": ping\n\n"), LEAVE], (INPUT, 0)),
    "in mid stream": ([start(), part(3 * TOKEN), LEAVE], (INPUT, 3)),
    "just before the usage": ([start(), part(19 * TOKEN), part(TOKEN), LEAVE], (INPUT, 20)),
    "exception before the head": ([RuntimeError()], (0, 0)),
    "exception in mid stream": ([start(), part(2 * TOKEN), RuntimeError()], (INPUT, 2)),
    "client error": ([start(422, JSON), part(b'{"error":{}}', more=False)], (0, 0)),
    "server error": ([start(500, JSON), part(b'{"error":{}}', more=False)], (0, 0)),
}


class Steps:
    """An app that takes the steps of a path; ``began`` and ``ended`` are its progress."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, dict):
                    await send(step)
                    continue
                self.began.set()
                assert (await receive())["type"] == "http.disconnect"
        finally:
            self.ended.set()


async def soon(awaitable: Awaitable[object]) -> None:
    await asyncio.wait_for(awaitable, HANG_S)


async def until(throttle: ManualThrottle, used: int) -> None:
    """Wait until so many tokens are charged."""
    while 1000 - left(throttle) != used:  # noqa: ASYNC110 - no event belongs to it
        await asyncio.sleep(0)


async def served(throttle: ManualThrottle, app: Any, http: str, client: Callable[..., Any]) -> None:
    """Serve an app under uvicorn for one client, and wait until all requests have ended."""
    middleware = ThrottleMiddleware(app, throttle=throttle)
    async with under_uvicorn(middleware, http=http, lifespan="off") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + BODY)
        await client(reader, writer, port)
        writer.transport.abort()
    assert throttle.admission.parts.settlement.limiter.in_flight == 0


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("path", PATHS)
async def test_tokens_are_settled_over_a_socket(path: str, http: str) -> None:
    steps, used = PATHS[path]
    throttle, app = limited(), Steps(steps)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: int) -> None:
        if LEAVE in steps or PREFILL in steps:
            await soon(app.began.wait())
            writer.transport.abort()
        await soon(app.ended.wait())

    await served(throttle, app, http, client)
    assert 1000 - left(throttle) == sum(used)
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.reserved + counts.overrun - counts.given_back == counts.settled == sum(used)


@pytest.mark.parametrize("leaves", [True, False])
async def test_request_that_ends_in_the_queue_costs_nothing(leaves: bool) -> None:
    throttle = limited(policy="concurrency", inflight_max=1, slo_s=0.4 if not leaves else 60)
    release, began = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        began.set()
        await release.wait()
        await send(start(200, EVENTS))
        await send(part(USAGE, more=False))

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        await soon(began.wait())
        _, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(HEAD + BODY)
        await soon(until(throttle, 2 * (INPUT + OUTPUT)))
        if leaves:
            second.transport.abort()
        else:
            throttle.clock.advance(1.0)
            throttle.admission.verdicts.called()
        await soon(until(throttle, INPUT + OUTPUT))
        release.set()
        await soon(reader.readuntil(b"[DONE]"))
        second.transport.abort()

    await served(throttle, app, "h11", client)
    assert 1000 - left(throttle) == sum(REPORTED)
