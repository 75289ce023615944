"""Each admitted request is settled when its last byte has passed, and as it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from autoglm_throttle import Outcome, Permit, Priority
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.scope import verdicts_of
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import Decision, Reason, Rejected
from tests.admission.limited_throttle import active
from tests.asgi.queued_clients import REQUEST, Client, settled, taken, with_places
from tests.asgi.run_app import Answer, App, Message, http_scope, request
from tests.asgi.streams import CHUNKS, Streaming, limited, outcomes


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


def refusal() -> Rejected:
    wait = 7.0
    return Rejected(
        Decision(
            False, Reason.USER, detail="user:extra", policy="extra", retry_after_s=wait, reset_after_s=wait
        )
    )


async def test_downstream_charge_rejection_becomes_429() -> None:
    throttle = limited()
    answer = await request(ThrottleMiddleware(raising(refusal(), after_start=False), throttle=throttle))
    assert (answer.status, answer.header("retry-after")) == (429, "7")
    assert outcomes(throttle) == {"neutral": 1}


async def test_charge_rejected_after_start_rewrites_nothing() -> None:
    throttle = limited()
    answer = Answer()

    async def send(message: Message) -> None:
        answer.messages.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    app = ThrottleMiddleware(raising(refusal(), after_start=True), throttle=throttle)
    with pytest.raises(Rejected):
        await app(http_scope(), receive, send)
    assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]
    assert outcomes(throttle) == {"neutral": 1}


async def test_app_finds_its_permit_in_the_scope() -> None:
    throttle = limited()
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(verdicts_of(scope)[throttle])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert isinstance(found[0], Permit)
    assert found[0].settled


async def test_app_that_settles_its_permit_itself_decides_the_outcome() -> None:
    throttle = limited()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        verdicts_of(scope)[throttle].settle(Outcome.FAILURE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    await request(ThrottleMiddleware(app, throttle=throttle))
    assert outcomes(throttle) == {"failure": 1}
    assert throttle.snapshot().stale_results == 0


# --- where the requests in flight are limited ---


@pytest.mark.parametrize(("ending", "body"), [("goes on", b"012more"), ("fails", b"012"), ("leaves", b"012")])
def test_stream_holds_slot_until_end_or_disconnect(backend: str, ending: str, body: bytes) -> None:
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
