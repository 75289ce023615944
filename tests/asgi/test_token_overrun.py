"""Streams that outgrow their reservation while their user has no tokens left: they go on, stop, or abort."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.responses import StreamingResponse

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.token_meter import EXTENSION_TOKENS
from autoglm_throttle.testing import ManualThrottle
from autoglm_throttle.types import Outcome
from tests.asgi.run_app import Answer, http_scope
from tests.asgi.test_token_paths import EVENTS, INPUT, PATH, TOKEN, USAGE, left, limited, part, start, turns
from tests.gateway.loopback import under_uvicorn

RESERVED = 10
BODY = json.dumps({"prompt": "x" * 100}).encode()
SENT = 30  # Tokens that the app would send
LIMIT = INPUT + RESERVED + EXTENSION_TOKENS - 1  # It cannot take a further step


class Endless:
    """An app that sends parts until it is stopped, and records how that happened."""

    def __init__(self, *parts: bytes, **more: Any) -> None:
        self.parts, self.more = parts, more
        self.sent = 0
        self.error: BaseException | None = None
        self.next_message: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start(**self.more))
        try:
            for each in self.parts:
                await send(part(each))
                self.sent += 1
            await send(part(b"", more=False))
        except OSError as error:
            self.error = error
            self.next_message = await receive()
            await send(part(b"after the end"))


def users_limit(overrun: str, limit: int = LIMIT, **settings: Any) -> ManualThrottle:
    return limited(
        tokens_limit=f"{limit}/minute",
        tokens_default_output=RESERVED,
        tokens_overrun=overrun,
        **settings,
    )


async def stream(throttle: ManualThrottle, app: Any, path: str = PATH) -> Answer:
    answer = Answer()
    incoming = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Any:
        return incoming.pop()

    async def send(message: Any) -> None:
        answer.messages.append(message)

    scope = http_scope(path, "POST", {"content-length": str(len(BODY))})
    await ThrottleMiddleware(app, throttle=throttle)(scope, receive, send)
    return answer


def outcomes(throttle: ManualThrottle) -> dict[Outcome, int]:
    return {each: count for (_, each), count in throttle.snapshot().outcomes.items() if count}


def used(throttle: ManualThrottle) -> int:
    return 1000 - left(throttle)


async def test_stream_goes_on_if_overruns_are_allowed() -> None:
    throttle, app = users_limit("allow"), Endless(*[TOKEN] * SENT)
    answer = await stream(throttle, app)
    assert answer.body == TOKEN * SENT
    assert app.error is None
    assert used(throttle) == INPUT + SENT
    assert outcomes(throttle) == {Outcome.SUCCESS: 1}


async def test_stream_is_stopped_in_its_dialect() -> None:
    throttle, app = users_limit("stop"), Endless(*[TOKEN] * SENT)
    answer = await stream(throttle, app)
    assert app.sent == RESERVED
    assert isinstance(app.error, ConnectionAbortedError)
    assert app.next_message == {"type": "http.disconnect"}
    end = answer.body.removeprefix(TOKEN * (RESERVED + 1))
    assert b'"finish_reason":"length"' in end
    assert end.endswith(b"data: [DONE]\n\n")
    assert not answer.messages[-1].get("more_body")
    assert used(throttle) == INPUT + RESERVED + 1
    assert outcomes(throttle) == {Outcome.NEUTRAL: 1}
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert (counts.settled, counts.overrun, counts.ended) == (INPUT + RESERVED + 1, 1, 1)


async def test_aborted_stream_has_no_end() -> None:
    throttle, app = users_limit("abort"), Endless(*[TOKEN] * SENT)
    answer = await stream(throttle, app)
    assert answer.body == TOKEN * (RESERVED + 1)
    assert answer.messages[-1]["more_body"]
    assert used(throttle) == INPUT + RESERVED + 1
    assert outcomes(throttle) == {Outcome.NEUTRAL: 1}


async def test_stream_goes_on_while_its_user_has_tokens() -> None:
    throttle = users_limit("stop", LIMIT + 1)
    app = Endless(*[TOKEN] * (RESERVED + EXTENSION_TOKENS + 2))
    answer = await stream(throttle, app)
    assert app.sent == RESERVED + EXTENSION_TOKENS
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert used(throttle) == INPUT + RESERVED + EXTENSION_TOKENS + 1


async def test_two_limits_are_charged_together() -> None:
    throttle = users_limit("stop", 1000, tokens_output_limit=f"{RESERVED + EXTENSION_TOKENS - 1}/minute")
    app = Endless(*[TOKEN] * SENT)
    await stream(throttle, app)
    assert app.sent == RESERVED
    assert used(throttle) == 2 * (RESERVED + 1) + INPUT


async def test_stream_is_stopped_only_between_two_events() -> None:
    app = Endless(*[TOKEN] * RESERVED, TOKEN + TOKEN[:9], TOKEN[9:] + TOKEN[:5], TOKEN[5:], TOKEN)
    answer = await stream(users_limit("stop"), app)
    assert answer.body.startswith(TOKEN * (RESERVED + 3) + b'data: {"choices":[{"index":0,"delta":{},')
    assert app.sent == RESERVED + 2


async def test_stream_that_ends_anyway_is_not_stopped() -> None:
    app = Endless(*[TOKEN] * RESERVED, TOKEN + USAGE)
    answer = await stream(users_limit("stop"), app)
    assert answer.body == TOKEN * (RESERVED + 1) + USAGE
    assert app.error is None


@pytest.mark.parametrize("overrun", ["stop", "abort"])
@pytest.mark.parametrize(
    ("event", "more"),
    [
        (b'data: {"type":"other","delta":"a"}\n\n', {}),
        (b"data: text\n\n", {}),
        (TOKEN, {"headers": [*EVENTS, (b"content-encoding", b"gzip")]}),
        (TOKEN, {"headers": [(b"content-type", b"application/json")]}),
        (TOKEN, {"status": 500}),
    ],
)
async def test_response_that_cannot_be_read_goes_on(overrun: str, event: bytes, more: Any) -> None:
    throttle, app = users_limit(overrun), Endless(*[event] * 600, **more)
    answer = await stream(throttle, app)
    assert answer.body == event * 600
    assert app.error is None
    counts = throttle.admission.parts.token_limits.counts  # type: ignore[union-attr]
    assert counts.settled == used(throttle)


async def test_stream_that_cannot_be_ended_is_charged_while_it_runs() -> None:
    throttle = users_limit("stop")
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        for _ in range(RESERVED + EXTENSION_TOKENS + 3):
            seen.append(used(throttle))
            await send(part(b"data: text\n\n"))

    await stream(throttle, app)
    assert seen[RESERVED] == seen[RESERVED + EXTENSION_TOKENS] == INPUT + RESERVED
    assert seen[-1] == INPUT + RESERVED + EXTENSION_TOKENS


async def test_dry_run_ends_no_stream() -> None:
    app = Endless(*[TOKEN] * SENT)
    assert (await stream(users_limit("stop", dry_run=True), app)).body == TOKEN * SENT


async def test_cancellation_of_an_ended_app_is_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await Endless(*[TOKEN] * SENT)(scope, receive, send)
        except ConnectionAbortedError:
            raise KeyboardInterrupt from None

    throttle = users_limit("stop")
    with pytest.raises(KeyboardInterrupt):
        await stream(throttle, app)
    assert used(throttle) == INPUT + RESERVED + 1


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("overrun", ["stop", "abort"])
async def test_stream_over_a_socket_ends(http: str, overrun: str) -> None:
    throttle, ended = users_limit(overrun), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":

            async def parts() -> Any:
                try:
                    while True:
                        yield TOKEN
                finally:
                    ended.append(True)

            await StreamingResponse(parts(), media_type="text/event-stream")(scope, receive, send)

    async with (
        under_uvicorn(ThrottleMiddleware(app, throttle=throttle), http=http, lifespan="off") as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
        client.stream("POST", PATH, content=BODY) as answer,
    ):
        received, error = b"", None
        try:
            async for each in answer.aiter_raw():
                received += each
        except httpx.RemoteProtocolError as raised:
            error = raised
    assert received.startswith(TOKEN * (RESERVED + 1))
    assert received.endswith(b"data: [DONE]\n\n" if overrun == "stop" else TOKEN)
    assert (error is None) == (overrun == "stop")
    assert used(throttle) == INPUT + RESERVED + 1
    await turns()
    assert ended == [True]
