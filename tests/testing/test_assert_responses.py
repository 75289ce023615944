"""Telling the throttle's answers from the app's."""

import http.client
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from autoglm_throttle.asgi.dialects import STATUS
from autoglm_throttle.asgi.responses import ResponseBuilder
from autoglm_throttle.settings.groups.callers import ResponseSettings
from autoglm_throttle.testing import assert_admitted, assert_limited, assert_rejected, assert_shed
from autoglm_throttle.testing.assertions import LIMITED_STATUS, SHED_STATUS
from autoglm_throttle.types import Decision, Reason


def body_of(reason: Reason) -> bytes:
    wait = float("inf") if reason is Reason.TOO_LARGE else 2.0
    decision = Decision(False, reason, f"{reason.value}:it", "it", limit=1.0, retry_after_s=wait)
    _, _, body = ResponseBuilder(ResponseSettings()).rejection(decision)
    return body


def answers(status: int, body: bytes) -> list[object]:
    """The same answer as each kind of client tells it."""
    plain: list[dict[str, Any]] = [
        {"type": "http.response.start", "status": status, "headers": []},
        {"type": "http.response.body", "body": body[:10], "more_body": True},
        {"type": "http.response.body", "body": body[10:]},
    ]
    denial = [{**message, "type": f"websocket.{message['type']}"} for message in plain]
    return [httpx.Response(status, content=body), Response(body, status), plain, denial]


def test_the_statuses_are_those_of_the_answers() -> None:
    assert sorted(LIMITED_STATUS) == [413, 429]
    assert sorted(SHED_STATUS) == [503]


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.OK])
def test_each_rejection_is_known_in_each_response_type(reason: Reason) -> None:
    fits, other = (assert_shed, assert_limited) if STATUS[reason] == 503 else (assert_limited, assert_shed)
    another = Reason.GPU if reason is Reason.QUEUE else Reason.QUEUE
    for answer in answers(STATUS[reason], body_of(reason)):
        for check in (fits, assert_rejected):
            check(answer)
            check(answer, reason)
            check(answer, reason=reason, detail=f"{reason}:it")
            with pytest.raises(
                AssertionError, match=f"expected the reason {another}, got {reason}:it: {STATUS[reason]}"
            ):
                check(answer, another)
            with pytest.raises(AssertionError, match=f"expected the detail {reason}:no, got {reason}:it"):
                check(answer, reason, detail=f"{reason}:no")
        with pytest.raises(AssertionError, match="from the throttle: "):
            other(answer)
        with pytest.raises(AssertionError, match="to be admitted"):
            assert_admitted(answer)


@pytest.mark.parametrize("status", [200, 204, 404, 413, 429, 500, 503])
def test_response_of_the_app_was_admitted(status: int) -> None:
    for answer in (JSONResponse({"detail": "busy"}, status), PlainTextResponse("busy", status)):
        assert_admitted(answer)
        for wrong in (assert_limited, assert_shed, assert_rejected):
            with pytest.raises(AssertionError, match=f"got {status} from the app"):
                wrong(answer)
    assert_admitted(JSONResponse([], status))


def test_bare_status_is_enough() -> None:
    assert_limited(429)
    assert_limited(413)
    assert_shed(503)
    for status in (413, 429, 503):
        assert_rejected(status)
    assert_admitted(200)
    with pytest.raises(AssertionError, match=r"rejected \(429, 413, 503\), got 200 from the app"):
        assert_rejected(200)
    with pytest.raises(AssertionError, match="got 429 from the throttle"):
        assert_admitted(429)
    with pytest.raises(AssertionError, match="expected the reason user, got none"):
        assert_limited(429, "user")


def test_any_object_with_a_status_will_do() -> None:
    class Answer:
        status = 503

    assert_shed(Answer())


@pytest.mark.parametrize(
    "nothing", [None, "429", [], [{"type": "websocket.close"}], http.client.HTTPMessage()]
)
def test_what_is_no_answer_is_a_mistake(nothing: object) -> None:
    with pytest.raises(TypeError, match=r"found in|is among"):
        assert_admitted(nothing)
