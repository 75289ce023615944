"""``X-Degraded`` on the answers of apps in which a guarded call was answered from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.asgi import EXPOSED_FIELDS
from autoglm_throttle.resilience.fallback import Fallback, degraded_answers
from autoglm_throttle.testing import ManualThrottle
from autoglm_throttle.types import GuardRejected
from tests.asgi.guarded_app import SORRY, limits, plain
from tests.asgi.run_app import App, request
from tests.loops import run


def featured(**features: Fallback | None) -> ManualThrottle:
    """A throttle whose features all reject, and use their fallback if they have one."""
    throttle = limits()
    for name, fallback in features.items():
        throttle.feature(name, fallback=fallback, criticality="non_core").force_open()
    return throttle


def calling(throttle: ManualThrottle, *names: str) -> Callable[[], None]:
    """A function that makes one call to each of the guards."""

    def call() -> None:
        for name in names:
            throttle.guard(name)(lambda: "live")()

    return call


def app_that(throttle: ManualThrottle, call: Callable[[], object], **more: Any) -> App:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        call()
        await plain(send, 200, b"page", **more)

    return ThrottleMiddleware(app, throttle=throttle)


STATIC = Fallback(static="spare")
DYNAMIC = Fallback(dynamic=lambda _: "computed")


async def test_response_lists_each_degraded_pair_once() -> None:
    throttle = featured(one=STATIC, two=DYNAMIC, three=STATIC)
    answer = await request(app_that(throttle, calling(throttle, "one", "two", "one", "three")))
    assert answer.header("x-degraded") == "static; cause=operator, dynamic; cause=operator"
    assert answer.body == b"page"
    assert "x-degraded" in EXPOSED_FIELDS


async def test_response_without_degraded_calls_has_no_field() -> None:
    throttle = featured(one=STATIC)
    assert (await request(app_that(throttle, calling(throttle, "one")))).header("x-degraded")
    answer = await request(app_that(throttle, lambda: None))
    assert answer.header("x-degraded") is None
    assert degraded_answers.get() is None


async def test_without_features_nothing_is_opened() -> None:
    seen: list[object] = []
    throttle = limits()
    await request(app_that(throttle, lambda: seen.append(degraded_answers.get())))
    assert seen == [None]


async def test_a_field_of_the_app_stays() -> None:
    throttle = featured(one=STATIC)
    app = app_that(throttle, calling(throttle, "one"), headers=[(b"X-Degraded", b"mine")])
    assert [value for name, value in (await request(app)).fields if name.lower() == b"x-degraded"] == [
        b"mine"
    ]


async def test_an_app_that_fails_leaves_no_notes() -> None:
    throttle = featured(one=None)

    def broken() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await request(app_that(throttle, broken))
    assert degraded_answers.get() is None


async def test_a_fallback_of_the_app_speaks_for_itself_alone() -> None:
    throttle = featured(one=STATIC)
    throttle.feature("app", fallback=Fallback(static=SORRY))

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        calling(throttle, "one")()
        await plain(send, 500, b"")

    answer = await request(ThrottleMiddleware(app, throttle=throttle, breaker="app"))
    assert answer.header("x-degraded") == "static; cause=error"


async def test_two_throttles_say_it_once() -> None:
    inner = featured(one=STATIC)
    app = app_that(inner, calling(inner, "one"))
    answer = await request(ThrottleMiddleware(app, throttle=featured(other=STATIC)))
    assert answer.header("x-degraded") == "static; cause=operator"


async def test_degraded_call_after_response_start_is_not_listed() -> None:
    throttle = featured(one=STATIC)

    async def parts() -> Any:
        calling(throttle, "one")()
        yield b"part"

    app = ThrottleMiddleware(StreamingResponse(parts()), throttle=throttle)
    answer = await request(app)
    assert (answer.body, answer.header("x-degraded")) == (b"part", None)


def starlette(throttle: ManualThrottle, endpoint: Any) -> App:
    """With a middleware of the kind that runs its app in a task of its own."""

    async def passing(request: Request, call_next: Any) -> Response:
        answer: Response = await call_next(request)
        return answer

    return Starlette(
        routes=[Route("/", endpoint)],
        middleware=[
            Middleware(ThrottleMiddleware, throttle=throttle),
            Middleware(BaseHTTPMiddleware, dispatch=passing),
        ],
    )


def test_in_threads_tasks_and_both_loops(backend: str) -> None:
    throttle = featured(one=STATIC, two=DYNAMIC)

    def in_a_thread(_request: Request) -> Response:
        calling(throttle, "one")()
        return PlainTextResponse("page")

    async def in_tasks(_request: Request) -> Response:
        async def child() -> None:
            calling(throttle, "two")()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
        return PlainTextResponse("page")

    async def main() -> None:
        one = await request(starlette(throttle, in_a_thread))
        two = await request(starlette(throttle, in_tasks))
        assert one.header("x-degraded") == "static; cause=operator"
        assert two.header("x-degraded") == "dynamic; cause=operator"

    run(backend, main)


async def test_concurrent_requests_record_separately() -> None:
    throttle = featured(one=STATIC)
    both = anyio.Event()

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["path"] == "/degraded":
            calling(throttle, "one")()
            both.set()
        await both.wait()
        await plain(send, 200, b"page")

    limited = ThrottleMiddleware(app, throttle=throttle)
    said: dict[str, str | None] = {}

    async def client(path: str) -> None:
        said[path] = (await request(limited, path)).header("x-degraded")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client, "/whole")
        tasks.start_soon(client, "/degraded")
    assert said == {"/whole": None, "/degraded": "static; cause=operator"}


async def test_a_feature_left_out_is_said_too() -> None:
    throttle = limits()
    throttle.feature("related", criticality="non_core")
    laden = replace(throttle.control_state(), load=0.85)
    throttle.control_state = lambda: laden  # type: ignore[method-assign]
    throttle.tick(4)

    def without() -> None:
        with pytest.raises(GuardRejected):
            calling(throttle, "related")()

    answer = await request(app_that(throttle, without))
    assert answer.header("x-degraded") == "shed; cause=load"
