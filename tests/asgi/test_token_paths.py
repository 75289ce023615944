"""Tokens of requests through the middleware: reserved before the app, settled once on every path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.token_meter import EXTENSION_TOKENS
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Decision, Outcome, Priority, Reason, Rejected
from tests.asgi.run_app import Answer, Message, http_scope, send_scope

PATH = "/v1/chat/completions"
INPUT = 25  # Estimated: a hundred bytes
OUTPUT = 40
REPORTED = (30, 7)
BODY = json.dumps({"model": "m", "messages": [{"content": "x" * 100}], "max_tokens": OUTPUT}).encode()
EVENTS = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7}}\n\ndata: [DONE]\n\n'

App = Callable[[Any, Any, Any], Awaitable[None]]


def limited(**settings: Any) -> ManualThrottle:
    return throttle_for_tests(**{"tokens_limit": "1000/minute", **settings})


def start(status: int = 200, headers: Any = EVENTS) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def app_of(*steps: Any) -> App:
    """An app that reads its request, then sends messages, raises errors, or awaits what it is given."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for step in steps:
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                await step(receive)
            else:
                await send(step)

    return app


async def post(
    throttle: ManualThrottle, app: App, body: bytes = BODY, path: str = PATH, **more: Any
) -> Answer:
    scope = http_scope(path, "POST", {"content-length": str(len(body)), **more})
    message = {"type": "http.request", "body": body, "more_body": False}
    return await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, [message])


def left(throttle: ManualThrottle) -> int:
    """Return the tokens that the caller has left, by a request that takes one and gives it back."""
    counts: Any = throttle.admission.parts.token_limits
    return 1000 - sum(  # type: ignore[no-any-return]
        window._layout._sum(ring.counts)
        for _, limits in counts._kinds
        for window, _ in limits._pairs.values()
        for ring in window.accounts.values()
    )


async def turns() -> None:
    """Let the other tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def wait_for_disconnect(receive: Any) -> None:
    message = await receive()
    assert message["type"] == "http.disconnect"


PATHS: dict[str, tuple[list[Any], tuple[int, int], Outcome]] = {
    "normal end": ([start(), part(TOKEN), part(USAGE, more=False)], REPORTED, Outcome.SUCCESS),
    "end without usage": ([start(), part(3 * TOKEN), part(b"", more=False)], (INPUT, 3), Outcome.SUCCESS),
    "whole body": (
        [
            start(200, JSON),
            part(b'{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7}}', more=False),
        ],
        *(REPORTED, Outcome.SUCCESS),
    ),
    "unknown type": ([start(200, []), part(b"abc", more=False)], (INPUT, OUTPUT), Outcome.SUCCESS),
    "client error": ([start(422, JSON), part(b'{"error":{}}', more=False)], (0, 0), Outcome.SUCCESS),
    "server error": ([start(500, JSON), part(b'{"error":{}}', more=False)], (0, 0), Outcome.FAILURE),
    "error that reports usage": (
        [start(500, JSON), part(b'{"usage":{"prompt_tokens":30,"completion_tokens":7}}', more=False)],
        *(REPORTED, Outcome.FAILURE),
    ),
    "exception before the response": ([RuntimeError()], (0, 0), Outcome.FAILURE),
    "rejection by the app": (
        [Rejected(Decision(False, Reason.USER, "user:own", retry_after_s=1.0))],
        (0, 0),
        Outcome.NEUTRAL,
    ),
    "exception before the first byte": ([start(), RuntimeError()], (0, 0), Outcome.FAILURE),
    "exception in mid stream": ([start(), part(2 * TOKEN), RuntimeError()], (INPUT, 2), Outcome.FAILURE),
    "client gone before the response": ([ClientDisconnect()], (0, 0), Outcome.NEUTRAL),
    "disconnect before the response": (
        [wait_for_disconnect, ClientDisconnect()],
        (INPUT, 0),
        Outcome.NEUTRAL,
    ),
    "disconnect before the first byte": ([start(), wait_for_disconnect], (INPUT, 0), Outcome.NEUTRAL),
    "cancelled before the first byte": ([start(), asyncio.CancelledError()], (INPUT, 0), Outcome.NEUTRAL),
    "cancelled before the response": ([asyncio.CancelledError()], (INPUT, 0), Outcome.NEUTRAL),
    "disconnect in mid stream": (
        [start(), part(3 * TOKEN), wait_for_disconnect],
        (INPUT, 3),
        Outcome.NEUTRAL,
    ),
    "disconnect before the usage": (
        [start(), part(TOKEN), part(TOKEN * 19), wait_for_disconnect],
        (INPUT, 20),
        Outcome.NEUTRAL,
    ),
    "disconnect after a small early usage": (
        [
            start(),
            part(b'data: {"message":{"usage":{"input_tokens":30,"output_tokens":1}},"type":"a"}\n\n'),
            part(b'data: {"type":"content_block_delta","delta":{"text":"aa"}}\n\n' * 9),
            wait_for_disconnect,
        ],
        *((30, 9), Outcome.NEUTRAL),
    ),
    "app without an answer": ([], (0, 0), Outcome.NEUTRAL),
}


@pytest.mark.parametrize("name", PATHS)
async def test_tokens_are_settled_once(name: str) -> None:
    steps, used, outcome = PATHS[name]
    throttle = limited()
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(1000 - left(throttle))
        await app_of(*steps)(scope, receive, send)

    gone = {"type": "http.disconnect"}
    scope = http_scope(PATH, "POST", {"content-length": str(len(BODY))})
    messages: list[Message] = [{"type": "http.request", "body": BODY, "more_body": False}]
    if wait_for_disconnect in steps:
        messages.append(gone)
    with contextlib.suppress(RuntimeError, ClientDisconnect, asyncio.CancelledError):
        await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, messages)
    assert seen == [INPUT + OUTPUT]
    assert 1000 - left(throttle) == sum(used)
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert (counts.reserved, counts.settled) == (INPUT + OUTPUT, sum(used))
    assert counts.reserved + counts.overrun - counts.given_back == counts.settled
    assert {each: n for (_, each), n in throttle.snapshot().outcomes.items() if n} == {outcome: 1}


@pytest.mark.parametrize(("messages", "used"), [(0, INPUT), (1, INPUT), (2, INPUT + 2)])
async def test_client_that_leaves_while_a_message_is_sent_is_charged(messages: int, used: int) -> None:
    throttle = limited()
    middleware = ThrottleMiddleware(app_of(start(), part(2 * TOKEN), part(TOKEN)), throttle=throttle)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Message) -> None:
        if len(sent) == messages:
            raise ConnectionResetError
        sent.append(message)

    with pytest.raises(ConnectionResetError):
        await middleware(http_scope(PATH, "POST", {"content-length": str(len(BODY))}), receive, send)
    assert 1000 - left(throttle) == used


async def test_app_and_client_get_every_message_unchanged() -> None:
    received: list[Message] = []
    parts = [BODY[:50], BODY[50:], b""]
    sent = [start(), part(TOKEN[:9]), part(bytearray(TOKEN[9:])), part(b""), part(USAGE, more=False)]  # type: ignore[arg-type]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while not received or received[-1]["more_body"]:
            received.append(await receive())
        for message in sent:
            await send(message)

    throttle = limited()
    incoming = [{"type": "http.request", "body": each, "more_body": each != b""} for each in parts]
    scope = http_scope(PATH, "POST", {"content-length": str(len(BODY))})
    answer = await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, incoming)
    assert received == incoming
    assert answer.messages[1:] == sent[1:]
    assert 1000 - left(throttle) == sum(REPORTED)


@pytest.mark.parametrize("requests", [5, 50])
async def test_concurrent_requests_do_not_pass_the_limit(requests: int) -> None:
    throttle = limited(tokens_limit="100/minute", slo_s=5)
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await app_of(start(), part(TOKEN * 40), part(b"", more=False))(scope, receive, send)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(post(throttle, app)) for _ in range(requests)]
        await turns()
        release.set()
    statuses = [task.result().status for task in tasks]
    assert statuses.count(200) == 1
    assert statuses.count(429) == requests - 1
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.settled <= 100


async def test_rejection_names_the_limit_and_the_wait() -> None:
    throttle = limited(tokens_limit="100/minute")
    ended = app_of(start(), part(TOKEN * 40, more=False))
    assert (await post(throttle, ended)).status == 200
    answer = await post(throttle, ended)
    assert answer.status == 429
    assert json.loads(answer.body)["error"]["code"] == "user:tokens-60s"
    assert answer.header("x-ratelimit-remaining-tokens") == "0"
    assert answer.header("x-ratelimit-limit-tokens") == "100"
    throttle.clock.advance(61.0)
    answer = await post(throttle, ended)
    assert answer.status == 200
    assert answer.header("x-ratelimit-remaining-tokens") == str(100 - INPUT - OUTPUT)


async def test_request_that_never_fits_is_too_large() -> None:
    answer = await post(limited(tokens_output_limit="39/minute"), app_of(RuntimeError()))
    assert answer.status == 413
    assert answer.header("x-should-retry") == "false"
    assert answer.header("retry-after") is None


async def test_both_kinds_of_limits_stand_in_the_header_fields() -> None:
    throttle = limited(user_limit="10/minute", tokens_output_limit="500/minute")
    ended = app_of(start(), part(USAGE, more=False))
    answer = await post(throttle, ended)
    assert answer.header("x-ratelimit-remaining-requests") == "9"
    assert answer.header("x-ratelimit-remaining-tokens") == str(1000 - INPUT - OUTPUT)
    answer = await post(throttle, ended, path="/v1/messages")
    assert answer.header("anthropic-ratelimit-requests-remaining") == "8"
    assert answer.header("anthropic-ratelimit-output-tokens-limit") == "500"
    assert answer.header("anthropic-ratelimit-tokens-remaining") == str(1000 - sum(REPORTED) - INPUT - OUTPUT)


async def test_body_is_not_read_for_a_request_that_is_rejected_anyway() -> None:
    throttle = limited(user_limit="1/minute")
    ended = app_of(start(), part(USAGE, more=False))
    assert (await post(throttle, ended)).status == 200

    async def receive() -> Message:
        raise AssertionError

    answer = Answer()

    async def send(message: Message) -> None:
        answer.messages.append(message)

    await ThrottleMiddleware(ended, throttle=throttle)(http_scope(PATH, "POST"), receive, send)
    assert answer.status == 429
    assert throttle.snapshot().requests[Priority.MID, "limited", Reason.USER] == 1


async def test_other_routes_and_methods_cost_no_tokens() -> None:
    throttle = limited()
    for path, method in (("/v1/models", "GET"), (PATH, "GET"), ("/other", "POST")):
        scope = http_scope(path, method)
        body = {"type": "http.request", "body": b"", "more_body": False}
        app = app_of(start(), part(USAGE, more=False))
        answer = await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, [body])
        assert answer.status == 200
    assert left(throttle) == 1000


@pytest.mark.parametrize(
    ("body", "more", "reserved"),
    [
        (b"not json", {}, 2 + 512),
        (b"[]", {}, 1 + 512),
        (BODY, {"content-encoding": "gzip"}, -(-len(BODY) // 4) + 512),
    ],
)
async def test_unknown_body_is_reserved_by_its_bytes(
    body: bytes, more: dict[str, str], reserved: int
) -> None:
    throttle = limited()
    await post(throttle, app_of(start(422, JSON), part(b"{}", more=False)), body, **more)
    assert throttle.admission.parts.token_limits.counts.reserved == reserved  # type: ignore[union-attr]
    assert left(throttle) == 1000


async def test_body_above_the_maximum_is_not_parsed() -> None:
    throttle = limited(tokens_body_max_bytes=1024, tokens_limit="100000/minute")
    body = json.dumps({"prompt": "x" * 2000, "max_tokens": 1}).encode()
    half = len(body) // 2
    received = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.extend([await receive(), await receive()])
        await send(start(422, JSON))
        await send(part(b"{}", more=False))

    incoming = [{"type": "http.request", "body": body[:half], "more_body": True}]
    incoming.append({"type": "http.request", "body": body[half:], "more_body": False})
    scope = http_scope(PATH, "POST", {"content-length": str(len(body))})
    await send_scope(ThrottleMiddleware(app, throttle=throttle), scope, incoming)
    assert received == incoming
    assert throttle.admission.parts.token_limits.counts.reserved >= 512  # type: ignore[union-attr]


async def test_embeddings_cost_their_input() -> None:
    throttle = limited()
    usage = json.dumps({"data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}).encode()
    await post(
        throttle, app_of(start(200, JSON), part(usage, more=False)), b'{"input":"abcd"}', "/v1/embeddings"
    )
    assert 1000 - left(throttle) == 8


async def test_answer_beyond_its_reservation_is_charged_while_it_runs() -> None:
    throttle = limited(tokens_default_output=10)
    seen = []

    async def look(receive: Any) -> None:
        seen.append(1000 - left(throttle))

    body = json.dumps({"prompt": "x" * 100}).encode()
    steps = [start(), part(TOKEN * 10), look, part(TOKEN), look, part(b"", more=False)]
    await post(throttle, app_of(*steps), body)
    assert seen == [INPUT + 10, INPUT + 10 + EXTENSION_TOKENS]
    assert 1000 - left(throttle) == INPUT + 11


async def test_usage_teaches_the_next_estimate() -> None:
    throttle = limited()
    middleware = ThrottleMiddleware(app_of(start(), part(TOKEN), part(USAGE, more=False)), throttle=throttle)
    scope = http_scope(PATH, "POST", {"content-length": str(len(BODY))})
    for _ in range(2):
        await send_scope(
            middleware, dict(scope), [{"type": "http.request", "body": BODY, "more_body": False}]
        )
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.reserved == INPUT + OUTPUT + 30 + OUTPUT
    estimates = {key: count for key, count in counts.estimates.items() if count}
    assert estimates == {("input", 0.9): 1, ("input", 1.1): 1, ("output", inf): 2}


async def test_dry_run_rejects_nothing_and_reserves_what_fits() -> None:
    throttle = limited(tokens_limit="100/minute", dry_run=True)
    ended = app_of(start(), part(TOKEN * 40, more=False))
    assert [(await post(throttle, ended)).status for _ in range(3)] == [200] * 3
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.settled == INPUT + OUTPUT
    assert throttle.snapshot().would_reject


async def test_request_that_leaves_the_queue_gets_its_tokens_back() -> None:
    throttle = limited(policy="concurrency", inflight_max=1, slo_s=5)
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await app_of(start(), part(USAGE, more=False))(scope, receive, send)

    first = asyncio.ensure_future(post(throttle, app))
    await turns()
    second = asyncio.ensure_future(post(throttle, app))
    await turns()
    assert 1000 - left(throttle) == 2 * (INPUT + OUTPUT)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert 1000 - left(throttle) == INPUT + OUTPUT
    release.set()
    await first
    assert 1000 - left(throttle) == sum(REPORTED)


@pytest.mark.parametrize("aborts", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_random_aborts_leak_no_tokens_and_no_slots(aborts: int) -> None:  # noqa: C901 - one scene
    rng = random.Random(1)
    throttle = limited(
        tokens_limit="16000000/minute", concurrency_per_user=12, policy="concurrency", inflight_max=5, slo_s=5
    )

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in (start(), part(TOKEN), part(TOKEN), part(USAGE, more=False)):
            await asyncio.sleep(0)
            if rng.random() < 0.1:
                raise RuntimeError
            await send(message)

    middleware = ThrottleMiddleware(app, throttle=throttle)

    async def request() -> None:
        scope = http_scope(PATH, "POST", {"content-length": str(len(BODY))})
        await send_scope(middleware, scope, [{"type": "http.request", "body": BODY, "more_body": False}])

    for _ in range(aborts // 20):
        tasks = [asyncio.ensure_future(request()) for _ in range(20)]
        for task in tasks:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.reserved > 0
    assert counts.reserved + counts.overrun - counts.given_back == counts.settled
    assert 1000 - left(throttle) == counts.settled
    assert throttle.admission.parts.settlement.limiter.in_flight == 0
    assert throttle.snapshot().requests[Priority.MID, "limited", Reason.CONCURRENCY] > 0
    assert throttle.admission.parts.user_limits._users == {}  # type: ignore[union-attr]
