"""A call of the server that has begun ends as if it had been awaited from the start."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.slot_watch import BegunCall, SlotWatch, TooSlowError, WatchedSlot, abandon, begin
from tests.asgi.queued_clients import Client, part, settled, with_places
from tests.asgi.run_app import http_scope

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def told(words: list[str], *, steps: int) -> str:
    """A call that suspends so many times, and keeps a scope open meanwhile, as some middlewares do."""
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.lowlevel.checkpoint)
        for step in range(steps):
            words.append(f"step {step}")
            await anyio.lowlevel.checkpoint()
    return "done"


async def test_call_that_never_suspends_is_done_at_once() -> None:
    async def immediate() -> str:
        return "at once"

    assert begin(immediate()) == "at once"


async def test_future_is_awaited_like_a_coroutine() -> None:
    future = asyncio.get_running_loop().create_future()
    call = begin(future)
    assert isinstance(call, BegunCall)
    future.set_result(7)
    assert await call == 7


@BACKENDS
def test_result_comes_after_all_steps(backend: str) -> None:
    words: list[str] = []

    async def main() -> str:
        call = begin(told(words, steps=3))
        assert isinstance(call, BegunCall)
        result: str = await call
        return result

    assert anyio.run(main, backend=backend) == "done"
    assert words == ["step 0", "step 1", "step 2"]


async def test_exception_of_the_first_step_reaches_the_caller() -> None:
    async def broken() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        begin(broken())


async def test_exception_of_a_later_step_reaches_the_caller() -> None:
    async def broken() -> None:
        await anyio.lowlevel.checkpoint()
        raise OSError("gone")

    call = begin(broken())
    with pytest.raises(OSError, match="gone"):
        await call


@BACKENDS
def test_cancelled_caller_cancels_the_call(backend: str) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(_awaited, endless)
            await settled()
            group.cancel_scope.cancel()

    async def _awaited(function: Any) -> None:
        await begin(function())

    anyio.run(main, backend=backend)
    assert ended == ["cancelled"]


async def test_abandoned_call_is_closed() -> None:
    ended: list[str] = []

    async def endless() -> None:
        with contextlib.suppress(GeneratorExit):
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("closed")

    abandon(begin(endless()))
    assert ended == ["closed"]


@BACKENDS
def test_scopes_inside_a_blocked_call_end_before_those_around_it(backend: str) -> None:
    async def main() -> str:
        watched = WatchedSlot(SlotWatch(with_places(1)), None)
        result: str = await watched.blocked(begin(told([], steps=3)))
        with anyio.CancelScope():  # the scopes of the task are still in order
            await anyio.lowlevel.checkpoint()
        return result

    assert anyio.run(main, backend=backend) == "done"


@BACKENDS
def test_blocked_call_that_expires_ends_its_scopes_too(backend: str) -> None:
    async def silent() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            await anyio.sleep_forever()

    async def main() -> None:
        throttle = with_places(1, body_timeout_s=30.0)
        watch = SlotWatch(throttle)
        watched = WatchedSlot(watch, None)
        async with anyio.create_task_group() as group:
            group.start_soon(expire, watch, throttle)
            with pytest.raises(TooSlowError):
                await watched.blocked(begin(silent()))
        with anyio.CancelScope():
            await anyio.lowlevel.checkpoint()

    async def expire(watch: SlotWatch, throttle: Any) -> None:
        await settled()
        throttle.clock.advance(29.9)
        watch.scan(throttle.clock())
        await settled()
        throttle.clock.advance(0.2)
        watch.scan(throttle.clock())

    anyio.run(main, backend=backend)


async def test_body_that_is_awaited_through_an_outer_starlette_middleware_arrives() -> None:
    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    throttle = with_places(1)
    app = Starlette(
        routes=[Route("/", echo, methods=["POST"])],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=passing),
            Middleware(ThrottleMiddleware, throttle=throttle),
        ],
    )
    client = Client(app, http_scope(method="POST", headers={"content-length": "6"}))
    async with anyio.create_task_group() as group:
        group.start_soon(client.run)
        await settled()
        client.sends(part(b"abc"))
        await settled()
        client.sends(part(b"def", more=False))
    assert client.error is None
    assert client.answer.status == 200
    assert client.answer.body == b"abcdef"
