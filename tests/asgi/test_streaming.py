"""Answers pass as the app made them, and each admitted request is settled when its last byte has passed."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from autoglm_throttle import Outcome, Permit, Priority
from autoglm_throttle.asgi import MARKER, ThrottleMiddleware
from autoglm_throttle.model import Decision, Reason, Refused
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.asgi.drive import Answer, App, Message, http_scope, request, send_scope
from tests.asgi.line import REQUEST, Client, settled, taken, with_places

CHUNKS = (b"data: one\n\n", b"", b"\x00\xff\r\n", b"data: [DONE]\n\n")


def limited(**settings: Any) -> ManualThrottle:
    return throttle_for_tests(**{"user_limit": "100/minute", **settings})


def outcomes(throttle: ManualThrottle) -> dict[str, int]:
    counted = throttle.snapshot().outcomes
    return {outcome.value: n for (_, outcome), n in counted.items() if n}


def active(throttle: ManualThrottle) -> int:
    return sum(throttle.snapshot().active.values())


class Streaming:
    """An app that sends its chunks and looks at what has arrived after each."""

    def __init__(self, headers: list[tuple[bytes, bytes]] | None = None, status: int = 200) -> None:
        self.start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": headers if headers is not None else [(b"content-type", b"text/event-stream")],
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send(self.start)
        for chunk in CHUNKS:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})


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


async def test_permit_is_held_until_the_last_byte_and_not_longer() -> None:
    throttle = limited()
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(active(throttle))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        throttle.clock.advance(3)
        seen.append(active(throttle))
        await send({"type": "http.response.body", "body": b"2"})
        seen.append(active(throttle))
        throttle.clock.advance(100)

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert seen == [1, 1, 0]
    assert outcomes(throttle) == {"success": 1}
    assert throttle.snapshot().durations[Priority.MID].total_s == 3.0
    assert throttle.snapshot().stale_results == 0


async def test_file_sent_by_the_server_settles_too() -> None:
    throttle = limited()
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": "/dev/null"})
        seen.append(active(throttle))

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert seen == [0]
    assert outcomes(throttle) == {"success": 1}


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "success"), (404, "success"), (500, "failure"), (503, "failure")]
)
async def test_status_is_the_outcome(status: int, outcome: str) -> None:
    throttle = limited()
    await request(ThrottleMiddleware(Streaming(status=status), throttle=throttle))
    assert outcomes(throttle) == {outcome: 1}


def raising(error: BaseException, *, after_start: bool) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if after_start:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"1", "more_body": True})
        raise error

    return app


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("app"), "failure"),
        (OSError("disk"), "failure"),
        (ClientDisconnect(), "neutral"),
        (KeyboardInterrupt(), "neutral"),
    ],
)
async def test_exception_passes_on_and_settles(error: BaseException, outcome: str, after_start: bool) -> None:
    throttle = limited()
    with pytest.raises(type(error)) as caught:
        await request(ThrottleMiddleware(raising(error, after_start=after_start), throttle=throttle))
    assert caught.value is error
    assert outcomes(throttle) == {outcome: 1}
    assert active(throttle) == 0


async def test_client_that_leaves_in_mid_stream_is_no_failure() -> None:
    throttle = limited()

    async def send(message: Message) -> None:
        if message.get("body") == CHUNKS[2]:
            raise OSError("nobody listens")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(OSError, match="nobody listens"):
        await ThrottleMiddleware(Streaming(), throttle=throttle)(http_scope(), receive, send)
    assert outcomes(throttle) == {"neutral": 1}
    assert active(throttle) == 0


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x"
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
async def test_client_that_leaves_a_framework_stream_is_no_failure(spec: str) -> None:
    throttle = limited()
    sent: list[Message] = []

    async def receive() -> Message:
        while len(sent) < 4:
            await anyio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if spec == "2.4" and len(sent) > 4:
            raise OSError("nobody listens")

    async def stream(request: Request) -> Response:
        return StreamingResponse(endless())

    app = ThrottleMiddleware(Starlette(routes=[Route("/", stream)]), throttle=throttle)
    scope = http_scope(asgi={"version": "3.0", "spec_version": spec})
    if spec == "2.4":
        with pytest.raises(ClientDisconnect):
            await app(scope, receive, send)
    else:
        await app(scope, receive, send)
    assert outcomes(throttle) == {"neutral": 1}
    assert active(throttle) == 0


async def test_cancellation_is_no_failure_and_leaves_nothing_behind() -> None:
    throttle = limited()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(0):
        await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"neutral": 1}
    assert active(throttle) == 0


async def test_app_that_answers_nothing_leaves_nothing_behind() -> None:
    throttle = limited()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"neutral": 1}
    assert active(throttle) == 0


async def test_background_task_runs_after_the_settlement() -> None:
    throttle = limited()
    seen: list[int] = []

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok", background=BackgroundTask(lambda: seen.append(active(throttle))))

    answer = await request(ThrottleMiddleware(Starlette(routes=[Route("/", endpoint)]), throttle=throttle))
    assert answer.body == b"ok"
    assert seen == [0]


async def test_failing_background_task_does_not_change_the_outcome() -> None:
    throttle = limited()

    async def task() -> None:
        raise RuntimeError("late")

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok", background=BackgroundTask(task))

    with pytest.raises(RuntimeError, match="late"):
        await request(ThrottleMiddleware(Starlette(routes=[Route("/", endpoint)]), throttle=throttle))
    assert outcomes(throttle) == {"success": 1}
    assert throttle.snapshot().stale_results == 0


def refusal() -> Refused:
    wait = 7.0
    return Refused(
        Decision(
            False, Reason.USER, detail="user:extra", policy="extra", retry_after_s=wait, reset_after_s=wait
        )
    )


async def test_charge_refused_downstream_becomes_a_429() -> None:
    throttle = limited()
    answer = await request(ThrottleMiddleware(raising(refusal(), after_start=False), throttle=throttle))
    assert (answer.status, answer.header("retry-after")) == (429, "7")
    assert outcomes(throttle) == {"neutral": 1}


async def test_charge_refused_after_the_start_rewrites_nothing() -> None:
    throttle = limited()
    answer = Answer()

    async def send(message: Message) -> None:
        answer.messages.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    app = ThrottleMiddleware(raising(refusal(), after_start=True), throttle=throttle)
    with pytest.raises(Refused):
        await app(http_scope(), receive, send)
    assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]
    assert outcomes(throttle) == {"neutral": 1}


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


async def test_app_finds_its_permit_in_the_scope() -> None:
    throttle = limited()
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope[MARKER][throttle])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert isinstance(found[0], Permit)
    assert found[0].settled


async def test_app_that_settles_its_permit_itself_decides_the_outcome() -> None:
    throttle = limited()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[MARKER][throttle].settle(Outcome.FAILURE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"failure": 1}
    assert throttle.snapshot().stale_results == 0


async def test_refused_request_never_reaches_the_app_and_reads_no_body() -> None:
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


async def test_refused_head_has_no_body_but_its_length() -> None:
    app = ThrottleMiddleware(Streaming(), throttle=limited(user_limit="1/minute"))
    await request(app)
    refused = await request(app, method="HEAD")
    assert (refused.status, refused.body) == (429, b"")
    assert int(refused.header("content-length") or 0) > 100


@pytest.mark.parametrize(
    "messages",
    [
        [{"type": "http.response.pathsend", "path": "/f"}],
        [
            {"type": "http.response.zerocopysend", "file": 3, "more_body": True},
            {"type": "http.response.zerocopysend", "file": 3},
        ],
    ],
)
async def test_a_file_sent_by_the_server_is_a_success_at_its_last_part(
    messages: list[dict[str, Any]],
) -> None:
    throttle = throttle_for_tests()
    active: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for message in messages:
            active.append(sum(throttle.snapshot().active.values()))
            await send(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        pass

    await ThrottleMiddleware(app, throttle=throttle)(http_scope(), receive, send)
    assert active == [1] * len(messages)
    assert throttle.snapshot().outcomes[Priority.MID, Outcome.SUCCESS] == 1


# --- where the requests in flight are limited ---


@pytest.mark.parametrize(("ending", "body"), [("goes on", b"012more"), ("fails", b"012"), ("leaves", b"012")])
def test_a_stream_holds_its_place_until_its_end_or_its_clients_leaving(
    backend: str, ending: str, body: bytes
) -> None:
    async def scenario() -> None:
        throttle = with_places(1)
        goes_on = anyio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d" % number
            await goes_on.wait()
            if ending == "fails":
                raise RuntimeError("in the midst")
            yield b"more"

        app = ThrottleMiddleware(StreamingResponse(chunks()), throttle=throttle)
        client = Client(app, http_scope(), REQUEST)
        async with anyio.create_task_group() as group:
            group.start_soon(client.run)
            await settled()
            assert len(client.answer.messages) == 4
            assert taken(throttle) == (1, 0, 1)
            if ending == "leaves":
                client.leaves()
            else:
                goes_on.set()
        assert taken(throttle) == (0, 0, 0)
        assert client.answer.body == body

    anyio.run(scenario, backend=backend)
