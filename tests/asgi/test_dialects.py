"""Rejections and limit fields in the formats of OpenAI, Anthropic and JSON-RPC."""

from __future__ import annotations

import json
import math
import re
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from autoglm_throttle import RoutePolicy, ThrottleMiddleware
from autoglm_throttle.asgi.dialects import DIALECTS, LIMIT_NAMES, dialect_of, openai_fields, reason_of
from autoglm_throttle.asgi.responses import ResponseBuilder
from autoglm_throttle.settings import ErrorStyle
from autoglm_throttle.settings.groups.callers import HeaderStyle, ResponseSettings
from autoglm_throttle.testing import assert_limited, assert_shed, throttle_for_tests
from autoglm_throttle.types import Decision, LimitStatus, Reason
from tests.asgi.guarded_app import plain
from tests.asgi.run_app import Answer, App, request

PATHS = {
    "/": "problem",
    "/v1": "problem",
    "/v12/chat": "problem",
    "/api/v1/users": "problem",
    "/v1/chat/completions": "openai",
    "/v1/models": "openai",
    "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic",
    "/v1/messages-of-the-day": "openai",
    "/mcp": "jsonrpc",
    "/mcp/": "jsonrpc",
    "/v1/mcp": "jsonrpc",
    "/tools/mcp": "jsonrpc",
    "/mcp/tools": "problem",
    "/tcp-mcp": "problem",
}

USER = Decision(False, Reason.USER, "user:user-60s", "user-60s", 100, 0, 12.3, 12.3, 60)
BUSY = Decision(False, Reason.QUEUE, "queue:slow", "queue", retry_after_s=0.48)
TOO_LARGE = Decision(False, Reason.TOO_LARGE, "too_large:user-60s", "user-60s", 5, 2, math.inf, 7.5, 60)
ERROR_TYPES = [
    (USER, 429, "rate_limit_error", "Your limit user-60s is used up; try again in 13 s."),
    (BUSY, 503, "overloaded_error", "The request would wait too long in the queue; try again in 1 s."),
    (
        TOO_LARGE,
        413,
        "invalid_request_error",
        "The request costs more than user-60s can ever admit: at most 5.",
    ),
]


def builder(dialect: str, **settings: Any) -> ResponseBuilder:
    return ResponseBuilder(ResponseSettings(retry_jitter=0.0, **settings), dialect)


def answer_to(decision: Decision, dialect: str, **settings: Any) -> tuple[int, dict[str, str], Any]:
    status, fields, body = builder(dialect, **settings).rejection(decision)
    names = [name for name, _ in fields]
    assert len(set(names)) == len(names), "each field once"
    assert dict(fields)[b"content-length"] == b"%d" % len(body)
    return status, {name.decode(): value.decode("ascii") for name, value in fields}, json.loads(body)


def limited_app(app: Any = None, **settings: Any) -> App:
    """An app whose callers have one request a minute each."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await plain(send, 200, b"live")

    throttle = throttle_for_tests(**{"user_limit": "1/minute", **settings})
    return ThrottleMiddleware(app or serve, throttle=throttle)


async def twice(path: str, **settings: Any) -> tuple[Answer, Answer]:
    app = limited_app(**settings)
    return await request(app, path), await request(app, path)


# --- which dialect ---


@pytest.mark.parametrize(("path", "dialect"), PATHS.items())
def test_dialect_of_a_path_is_that_of_its_api(path: str, dialect: str) -> None:
    assert dialect_of(path) == dialect


@pytest.mark.parametrize("errors", [style for style in ErrorStyle if style is not ErrorStyle.AUTO])
def test_dialect_that_is_set_applies_to_all_paths(errors: ErrorStyle) -> None:
    assert {dialect_of(path, errors) for path in PATHS} == {errors.value}
    assert errors.value in DIALECTS


@pytest.mark.parametrize(
    ("path", "settings", "shape"),
    [
        ("/chat", {}, {"type", "title", "status", "detail", "violated-policies", "reason", "retry_after_s"}),
        ("/v1/chat", {}, {"error"}),
        ("/v1/messages", {}, {"type", "error", "request_id"}),
        ("/mcp", {}, {"jsonrpc", "id", "error"}),
        ("/chat", {"errors": "openai"}, {"error"}),
        ("/chat", {"routes": [RoutePolicy("/chat", errors="openai")]}, {"error"}),
        ("/v1/x", {"errors": "jsonrpc", "routes": [RoutePolicy("/v1/x", errors="auto")]}, {"error"}),
        ("/v1/x", {"routes": [RoutePolicy("/v1/*")], "errors": "jsonrpc"}, {"jsonrpc", "id", "error"}),
    ],
)
async def test_rejection_has_the_body_of_its_path(
    path: str, settings: dict[str, Any], shape: set[str]
) -> None:
    _, rejected = await twice(path, **settings)
    assert rejected.status == 429
    assert set(json.loads(rejected.body)) == shape
    assert reason_of(json.loads(rejected.body)) == "user:user-60s"


async def test_root_path_is_not_part_of_the_path() -> None:
    app = limited_app()
    for _ in range(2):
        answer = await request(app, "/api/v1/chat", root_path="/api")
    assert set(json.loads(answer.body)) == {"error"}


# --- bodies ---


@pytest.mark.parametrize(("decision", "status", "kind", "sentence"), ERROR_TYPES)
def test_openai_body_has_type_code_and_message(
    decision: Decision, status: int, kind: str, sentence: str
) -> None:
    answered, fields, document = answer_to(decision, "openai")
    error = {"message": sentence, "type": kind, "param": None, "code": decision.detail}
    assert (answered, document) == (status, {"error": error})
    assert fields["content-type"] == "application/json"


@pytest.mark.parametrize(("decision", "status", "kind", "sentence"), ERROR_TYPES)
def test_anthropic_body_has_type_and_message(
    decision: Decision, status: int, kind: str, sentence: str
) -> None:
    answered, _, document = answer_to(decision, "anthropic")
    error = {"type": kind, "message": sentence, "code": decision.detail}
    assert (answered, document) == (status, {"type": "error", "error": error, "request_id": None})


@pytest.mark.parametrize(
    ("decision", "wait"), [(USER, {"retry_after_s": 13}), (BUSY, {"retry_after_s": 1}), (TOO_LARGE, {})]
)
def test_jsonrpc_body_has_no_id_and_the_wait(decision: Decision, wait: dict[str, int]) -> None:
    status, fields, document = answer_to(decision, "jsonrpc")
    error = document.pop("error")
    assert document == {"jsonrpc": "2.0", "id": None}
    assert (error["code"], error["data"]) == (status, {"reason": decision.detail, **wait})
    assert fields["content-type"] == "application/json"
    assert error["message"].endswith(".")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("decision", [USER, BUSY, TOO_LARGE])
def test_wait_fields_are_the_same_in_each_dialect(decision: Decision, dialect: str) -> None:
    names = ("retry-after", "retry-after-ms", "x-should-retry")
    _, expected, _ = answer_to(decision, "problem")
    _, fields, _ = answer_to(decision, dialect)
    assert {name: fields.get(name) for name in names} == {name: expected.get(name) for name in names}


def test_prepared_body_follows_the_seconds() -> None:
    answers = builder("openai")
    for wait in (12.3, 12.9, 13.1, 12.3):
        decision = Decision(False, Reason.QUEUE, "queue:slow", "queue", retry_after_s=wait)
        message = json.loads(answers.rejection(decision)[2])["error"]["message"]
        assert message.endswith(f"try again in {math.ceil(wait)} s.")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_assertions_know_the_throttle_in_each_dialect(dialect: str) -> None:
    for decision, check in ((USER, assert_limited), (BUSY, assert_shed)):
        status, _, body = builder(dialect).rejection(decision)
        answer = Response(body, status)
        check(answer, detail=decision.detail)
        with pytest.raises(AssertionError, match=r"from the throttle: .* try again in \d+ s\."):
            check(answer, detail="another")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"error": "Unauthorized"},
        {"error": {"code": 503}},
        {"error": {"code": "rate_limit_exceeded"}},
        {"error": {"data": {"reason": 1}}},
        {"reason": "queue:slow"},
    ],
)
def test_reason_of_another_service_is_none(document: object) -> None:
    assert reason_of(document) == ""


# --- fields ---


@given(wait=st.floats(0.0, 31_622_400.0))
def test_openai_reset_is_a_duration_and_never_early(wait: float) -> None:
    fields = {name.decode(): value.decode() for name, value in openai_fields(100.0, 41.0, wait)}
    assert [fields[name] for name in LIMIT_NAMES["openai"][:2]] == ["100", "41"]
    reset = fields["x-ratelimit-reset-requests"]
    parts = re.fullmatch(r"(?:(?:(\d+)h)?(\d+)m)?(\d+)s|(\d{1,4})ms", reset)
    assert parts, reset
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in parts.groups())
    total = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    assert wait - 1e-9 <= total <= wait + (0.001 if wait < 1.0 else 1.0)
    assert minutes < 60
    assert seconds < 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.017, "17ms"),
        (1, "1s"),
        (1.001, "2s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (1023, "17m3s"),
        (86_400, "24h0m0s"),
    ],
)
def test_openai_reset_is_written_as_go_does(seconds: float, text: str) -> None:
    assert openai_fields(1, 0, seconds)[2] == (b"x-ratelimit-reset-requests", text.encode())


def test_anthropic_reset_is_a_time_in_utc() -> None:
    before = time.time()
    _, fields, _ = answer_to(USER, "anthropic")
    after = time.time()
    assert fields["anthropic-ratelimit-requests-limit"] == "100"
    assert fields["anthropic-ratelimit-requests-remaining"] == "0"
    reset = fields["anthropic-ratelimit-requests-reset"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset)
    assert before + 12.3 <= datetime.fromisoformat(reset).timestamp() < after + 13.3


@pytest.mark.parametrize(
    ("headers", "dialect", "sent"),
    [
        ("auto", "openai", "openai"),
        ("auto", "anthropic", "anthropic"),
        ("auto", "jsonrpc", "ietf"),
        ("auto", "problem", "ietf"),
        ("ietf", "openai", "ietf"),
        ("openai", "problem", "openai"),
        ("anthropic", "openai", "anthropic"),
        ("none", "openai", "none"),
    ],
)
def test_style_of_fields_follows_the_dialect_or_the_setting(headers: str, dialect: str, sent: str) -> None:
    names = {**LIMIT_NAMES, "ietf": ("ratelimit", "ratelimit-policy"), "none": ()}
    admitted = Decision(True, Reason.OK, "", "user-60s", 100, 41, 0.0, 7.2, 60)
    start = {"type": "http.response.start", "status": 200, "headers": []}
    answers = builder(dialect, headers=headers)
    added: list[tuple[bytes, bytes]] = answers.add_fields(start, admitted)["headers"]
    assert {name.decode() for name, _ in added} == set(names[sent])
    _, rejected, _ = answer_to(USER, dialect, headers=headers)
    assert {name for name in rejected if "ratelimit" in name} == set(names[sent])
    _, busy, _ = answer_to(BUSY, dialect, headers=headers)
    assert not {name for name in busy if "ratelimit" in name}, "no user limit"


def test_single_limit_is_the_one_that_decided() -> None:
    other = LimitStatus("user-3600s", 1000, 3600, 400, 1800.5)
    decision = Decision(False, Reason.USER, "user:user-60s", "user-60s", 100, 0, 12.3, 12.3, 60, (other,))
    _, fields, _ = answer_to(decision, "openai")
    assert [fields[name] for name in LIMIT_NAMES["openai"]] == ["100", "0", "13s"]
    _, fields, _ = answer_to(TOO_LARGE, "openai")
    assert [fields[name] for name in LIMIT_NAMES["openai"]] == ["5", "2", "8s"], "what is left is left"


async def test_fields_say_what_is_left_after_this_request() -> None:
    admitted, rejected = await twice("/v1/chat", user_limit="1/minute;5/hour")
    assert admitted.header("x-ratelimit-limit-requests") == "1", "the fullest limit"
    assert admitted.header("x-ratelimit-remaining-requests") == "0"
    assert admitted.header("x-ratelimit-reset-requests") == "1m0s"
    assert rejected.header("x-ratelimit-reset-requests") == "1m0s"
    assert rejected.header("ratelimit") is None
    admitted, _ = await twice("/v1/messages")
    assert admitted.header("anthropic-ratelimit-requests-remaining") == "0"


async def test_field_of_the_app_is_left_unchanged() -> None:
    own = (b"x-ratelimit-limit-requests", b"7")

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [own]})
        await send({"type": "http.response.body", "body": b""})

    answer = await request(limited_app(serve), "/v1/chat")
    assert answer.header("x-ratelimit-limit-requests") == "7"
    assert answer.header("x-ratelimit-remaining-requests") == "0"


def test_each_style_that_may_be_set_is_built() -> None:
    for style in HeaderStyle:
        for dialect in DIALECTS:
            assert builder(dialect, headers=style).rejection(USER)[0] == 429
