"""Answers pass as the app made them."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import throttle_for_tests
from tests.admission.limited_throttle import active
from tests.asgi.run_app import Answer, Message, http_scope, request, send_scope
from tests.asgi.streams import CHUNKS, Streaming, limited, outcomes


async def test_stream_passes_byte_for_byte_with_headers_added_once() -> None:
    bare, limit = (
        await request(Streaming()),
        await request(ThrottleMiddleware(Streaming(), throttle=limited())),
    )
    assert limit.messages[1:] == bare.messages[1:]
    assert [name for name, _ in limit.fields] == [b"content-type", b"ratelimit-policy", b"ratelimit"]
    assert limit.header("ratelimit-policy") == '"user-60s";q=100;w=60'
    assert limit.header("ratelimit") == '"user-60s";r=99;t=60'


async def test_answer_without_a_user_limit_is_not_touched() -> None:
    app = Streaming()
    answer = await request(ThrottleMiddleware(app, throttle=throttle_for_tests()))
    assert answer.messages[0] is app.start


async def test_each_chunk_reaches_the_client_before_the_next_is_made() -> None:
    heard: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(5):
            assert heard == [b"%d" % earlier for earlier in range(number)]
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Message) -> None:
        if message.get("body"):
            heard.append(message["body"])

    async def receive() -> Message:
        return {"type": "http.request"}

    await ThrottleMiddleware(app, throttle=limited())(http_scope(), receive, send)
    assert len(heard) == 5


async def test_slow_client_holds_the_app_back_as_without_the_throttle() -> None:
    may_go_on, sent = anyio.Event(), []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            await may_go_on.wait()

    async def receive() -> Message:
        return {"type": "http.request"}

    async with anyio.create_task_group() as group:
        group.start_soon(ThrottleMiddleware(Streaming(), throttle=limited()), http_scope(), receive, send)
        await anyio.wait_all_tasks_blocked()
        assert len(sent) == 2
        may_go_on.set()
    assert len(sent) == len(CHUNKS) + 2


@pytest.mark.parametrize("name", ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"])
async def test_fields_of_the_app_win(name: str) -> None:
    app = Streaming([(name.encode(), b"mine"), (b"x-other", b"1")])
    answer = await request(ThrottleMiddleware(app, throttle=limited(headers="legacy")))
    assert answer.header(name) == "mine"
    ours = {
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    }
    assert {key.decode() for key, _ in answer.fields} == ours | {"x-other"}


async def test_prebuilt_start_message_is_not_changed() -> None:
    headers = [(b"content-type", b"text/plain")]
    app = Streaming(headers)
    wrapped = ThrottleMiddleware(app, throttle=limited())
    for left in (99, 98):
        answer = await request(wrapped)
        assert answer.header("ratelimit") == f'"user-60s";r={left};t=60'
    assert headers == [(b"content-type", b"text/plain")]
    assert app.start["headers"] is headers


@pytest.mark.parametrize("form", [None, tuple, iter, lambda pairs: [list(pair) for pair in pairs]])
async def test_start_messages_with_other_forms_of_headers(form: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        start: Message = {"type": "http.response.start", "status": 204}
        await send(start if form is None else {**start, "headers": form([(b"a", b"b"), (b"c", b"d")])})
        await send({"type": "http.response.body"})

    answer = await request(ThrottleMiddleware(app, throttle=limited()))
    theirs = [] if form is None else [b"a", b"c"]
    assert [name for name, _ in answer.fields] == [*theirs, b"ratelimit-policy", b"ratelimit"]


class Base(BaseHTTPMiddleware):
    """The framework's own kind of middleware, with its tasks and queues."""

    async def dispatch(self, request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-base"] = "1"
        return response


@pytest.mark.parametrize("order", ["inside", "outside", "both"])
async def test_base_http_middleware_inside_and_outside(order: str) -> None:
    async def stream(request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in CHUNKS:
                yield chunk

        return StreamingResponse(chunks())

    throttle = limited(user_limit="2/minute")
    app: Any = Starlette(routes=[Route("/", stream)])
    if order != "outside":
        app = Base(app)
    app = ThrottleMiddleware(app, throttle=throttle)
    if order != "inside":
        app = Base(app)
    answers = [await send_scope(app, http_scope(), [{"type": "http.request", "body": b""}]) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].body == b"".join(CHUNKS)
    assert answers[0].header("ratelimit") == '"user-60s";r=1;t=60'
    assert outcomes(throttle) == {"success": 2}
    assert active(throttle) == 0


async def test_context_variables_pass_both_ways() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert user.get() == "outside"
        user.set("inside")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    user.set("outside")
    await request(ThrottleMiddleware(app, throttle=limited()))
    assert user.get() == "inside"


async def test_rejected_request_skips_app_and_reads_no_body() -> None:
    app = ThrottleMiddleware(Streaming(), throttle=limited(user_limit="1/minute"))
    await request(app)

    async def receive() -> Message:
        raise AssertionError("a refused request's body is not read")

    answer = Answer()

    async def send(message: Message) -> None:
        answer.messages.append(message)

    await app(http_scope(method="POST"), receive, send)
    assert answer.status == 429
    assert answer.header("content-length") == str(len(answer.body))


async def test_rejected_head_has_length_without_body() -> None:
    app = ThrottleMiddleware(Streaming(), throttle=limited(user_limit="1/minute"))
    await request(app)
    refused = await request(app, method="HEAD")
    assert (refused.status, refused.body) == (429, b"")
    assert int(refused.header("content-length") or 0) > 100
