"""The fields that the middleware adds to a response, and the outcome that its status stands for."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.testing import throttle_for_tests
from tests.asgi.run_app import App, Message, Scope, request


def answering(status: int, *fields: tuple[bytes, bytes]) -> App:
    """Make an app that answers with a status and these fields."""

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        start: Message = {"type": "http.response.start", "status": status, "headers": list(fields)}
        await send(start)
        await send({"type": "http.response.body", "body": b"x"})

    return app


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "success"),
        (302, "success"),
        (404, "success"),
        (429, "success"),
        (500, "failure"),
        (599, "failure"),
    ],
)
async def test_a_status_of_the_app_settles_the_request_with_its_outcome(status: int, outcome: str) -> None:
    throttle = throttle_for_tests()
    await request(ThrottleMiddleware(answering(status), throttle=throttle))
    counts = {key[1].value: count for key, count in throttle.snapshot().outcomes.items() if count}
    assert counts == {outcome: 1}


async def test_a_field_of_the_app_wins_over_one_of_ours() -> None:
    throttle = throttle_for_tests(user_limit="10/minute")
    plain = await request(ThrottleMiddleware(answering(200), throttle=throttle))
    assert b"ratelimit" in dict(plain.fields)
    own = await request(ThrottleMiddleware(answering(200, (b"ratelimit", b"mine")), throttle=throttle))
    assert [value for name, value in own.fields if name == b"ratelimit"] == [b"mine"]
