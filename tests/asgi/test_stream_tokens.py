"""Time to the first token of an event stream, and between two tokens."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.admission.counters import DurationHistogram
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Priority
from tests.asgi.run_app import request

EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


async def stream(
    *parts: tuple[float, bytes], headers: Any = EVENTS, **settings: Any
) -> tuple[ManualThrottle, list[bytes]]:
    """Send parts, each some seconds after the one before."""
    throttle = throttle_for_tests(**settings)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for after_s, part in parts:
            throttle.clock.advance(after_s)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    answer = await request(ThrottleMiddleware(app, throttle=throttle))
    return throttle, [message.get("body", b"") for message in answer.messages[1:]]


def recorded(rows: Any) -> tuple[int, float]:
    row: DurationHistogram = rows[Priority.MID]
    return sum(row.counts), row.total_s


async def test_first_token_and_gaps_are_recorded_by_priority() -> None:
    throttle, _ = await stream((0.5, TOKEN), (0.25, TOKEN), (0.125, TOKEN))
    snapshot = throttle.snapshot()
    assert recorded(snapshot.first_token) == (1, 0.5)
    assert recorded(snapshot.inter_token) == (2, 0.375)
    assert sum(snapshot.first_token[Priority.HIGH].counts) == 0


@pytest.mark.parametrize("comment", [b": keep-alive\n\n", b":\n\n", b"retry: 3000\n\n", b""])
async def test_keep_alive_comment_is_no_token(comment: bytes) -> None:
    throttle, sent = await stream((1.0, comment), (1.0, TOKEN), (1.0, comment), (0.5, TOKEN))
    snapshot = throttle.snapshot()
    assert recorded(snapshot.first_token) == (1, 2.0)
    assert recorded(snapshot.inter_token) == (1, 1.5)
    assert sent == [comment, TOKEN, comment, TOKEN, b""]


@pytest.mark.parametrize(
    "part",
    [b"event: message_start\n" + TOKEN, b": keep-alive\n\n" + TOKEN, bytearray(TOKEN), memoryview(TOKEN)],
)
async def test_event_with_data_is_found_in_its_part(part: bytes) -> None:
    throttle, _ = await stream((0.5, part))
    assert recorded(throttle.snapshot().first_token) == (1, 0.5)


async def test_other_chunked_answers_have_no_tokens() -> None:
    throttle, _ = await stream((0.5, TOKEN), headers=[(b"content-type", b"application/x-ndjson")])
    assert recorded(throttle.snapshot().first_token) == (0, 0.0)
