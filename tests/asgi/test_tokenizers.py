"""Tokenizers of users: they count the input of a request in place of the estimate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.token_routes import TOKENIZED_BYTES
from tests.asgi.run_app import http_scope, send_scope
from tests.asgi.test_token_paths import BODY, INPUT, OUTPUT, PATH, app_of, limited, part, start


async def reserved_by(tokens_of: Any, body: bytes = BODY) -> int:
    """Return the input tokens that are reserved with a tokenizer."""
    throttle = limited(tokens_limit="1000000/minute")
    middleware = ThrottleMiddleware(
        app_of(start(), part(b"", more=False)), throttle=throttle, tokens_of=tokens_of
    )
    scope = http_scope(PATH, "POST", {"content-length": str(len(body))})
    await send_scope(middleware, scope, [{"type": "http.request", "body": body, "more_body": False}])
    return int(throttle.admission.parts.token_limits.counts.reserved) - OUTPUT  # type: ignore[union-attr]


async def test_tokenizer_replaces_the_estimate_of_the_input() -> None:
    seen: list[Any] = []

    def tokens_of(body: Any) -> int:
        seen.append(body)
        return 77

    assert await reserved_by(tokens_of) == 77
    assert seen == [json.loads(BODY)]
    long = json.dumps({"prompt": "x" * (TOKENIZED_BYTES + 4), "max_tokens": OUTPUT}).encode()
    assert await reserved_by(tokens_of, long) == TOKENIZED_BYTES / 4 + 1
    assert len(seen) == 1


def failing(_: Any) -> int:
    raise KeyError("messages")


@pytest.mark.parametrize(
    ("tokens_of", "text"),
    [
        (failing, "tokens: tokens_of failed, the estimate is used"),
        *(
            (
                lambda _, value=value: value,
                f"tokens_of returned {kind}, not a whole number from 0 to 10000000",
            )
            for value, kind in ((-1, "int"), (1.5, "float"), (None, "NoneType"), (True, "bool"))
        ),
    ],
)
async def test_tokenizer_that_fails_is_replaced_by_the_estimate(
    tokens_of: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await reserved_by(tokens_of) == INPUT
    assert text in caplog.text
