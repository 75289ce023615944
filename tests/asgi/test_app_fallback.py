"""Fallbacks of an app that fails."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from autoglm_throttle import Priority, Reason, ThrottleMiddleware
from autoglm_throttle.events import LOG_INTERVAL_S
from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.cache import CachePolicy
from autoglm_throttle.settings import BreakerSettings
from autoglm_throttle.types import FallbackContext, Outcome
from tests.asgi.guarded_app import (
    BOOM,
    FAILURES,
    REFUSED,
    SORRY,
    Service,
    answering,
    breaking_off,
    counted,
    degraded,
    leaving,
    limits,
    outcomes,
    stale,
    static,
    with_fallback,
)
from tests.asgi.run_app import request, send_scope, websocket_scope


@pytest.mark.parametrize(
    "failure",
    [500, 503, BOOM, breaking_off(None, 500), breaking_off(BOOM, 502)],
    ids=["500", "503", "boom", "half of a 500", "half of a 502 and boom"],
)
async def test_an_answer_that_fails_before_it_begins_is_replaced(failure: Any) -> None:
    service = static()
    answer = await service.ask(failure)
    assert (answer.status, answer.body) == (200, b"sorry")
    assert answer.header("x-degraded") == "static; cause=error"
    assert (answer.header("content-length"), answer.header("content-type")) == ("5", "text/plain")
    assert len(answer.messages) == 2
    assert service.breaker.streak == 1
    assert outcomes(service.throttle) == {"failure": 1}
    assert counted(service.throttle) == {("admitted", "ok"): 1}
    assert degraded(service.throttle) == {("app", "static", "error"): 1}


async def test_the_fields_of_the_limits_stand_in_it_too() -> None:
    answer = await static().ask(500)
    assert (answer.header("ratelimit") or "").startswith('"user-60s";r=999;')


async def test_an_app_that_returns_without_an_answer_is_replaced() -> None:
    async def mute(_scope: Any, _receive: Any, _send: Any) -> None:
        pass

    service = static()
    assert (await service.ask(mute)).body == b"sorry"
    assert service.breaker.streak == 1


async def test_a_break_in_mid_body_is_not_replaced() -> None:
    service = static()
    with pytest.raises(RuntimeError, match="boom"):
        await service.ask(breaking_off(BOOM))
    assert service.breaker.streak == 1
    assert degraded(service.throttle) == {}


async def test_other_statuses_are_the_apps_own() -> None:
    service = static()
    assert [(await service.ask(status)).status for status in (200, 404, 429, 501)] == [200, 404, 429, 501]


async def test_on_value_false_leaves_statuses_alone() -> None:
    service = static(on_value=False)
    assert (await service.ask(500)).status == 500
    assert (await service.ask(BOOM)).body == b"sorry"


async def test_an_ignored_exception_is_not_replaced() -> None:
    throttle = limits()
    throttle.feature("app", fallback=Fallback(static=SORRY), ignore=[KeyError])
    with pytest.raises(KeyError):
        await Service(throttle, KeyError("x")).ask()


async def test_disconnected_client_gets_no_fallback() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise BOOM

    service = static()
    service.answers = app
    with pytest.raises(RuntimeError):
        await leaving(service.app)
    assert degraded(service.throttle) == {}


async def test_disconnected_client_gets_no_guard_fallback() -> None:
    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise REFUSED

    service = static()
    service.answers = app
    await leaving(service.app)
    assert degraded(service.throttle) == {}


async def test_replaced_exception_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = static(breaker=BreakerSettings(failures=100))
    await service.fails(BOOM, 50)
    (line,) = [one for one in caplog.records if "the app failed" in one.message]
    assert line.exc_info is not None
    assert line.exc_info[1] is BOOM
    service.throttle.clock.advance(LOG_INTERVAL_S)
    await service.ask(BOOM)
    assert "49 more" in caplog.text


async def test_an_open_breaker_answers_before_the_limits() -> None:
    service = static(settings={"user_limit": f"{FAILURES}/minute"})
    await service.fails()
    answer = await service.ask(200)
    assert (answer.status, answer.body, service.calls) == (200, b"sorry", FAILURES)
    assert answer.header("x-degraded") == "static; cause=failures"
    assert answer.header("retry-after") is None
    assert counted(service.throttle) == {("admitted", "ok"): FAILURES, ("degraded", "breaker"): 1}
    assert service.throttle.snapshot().requests[Priority.MID, "shed", Reason.BREAKER] == 0
    assert degraded(service.throttle) == {
        ("app", "static", "error"): FAILURES,
        ("app", "static", "failures"): 1,
    }


async def test_websockets_have_no_fallback() -> None:
    service = static()
    await service.fails()
    answer = await send_scope(service.app, websocket_scope(), [{"type": "websocket.connect"}])
    assert answer.close_code == 1013
    assert counted(service.throttle)["shed", "breaker"] == 1


async def test_inner_guard_rejection_is_replaced_without_failure() -> None:
    service = static()
    answer = await service.ask(REFUSED)
    assert (answer.body, answer.header("x-degraded")) == (b"sorry", "static; cause=failures")
    assert service.breaker.streak == 0
    assert outcomes(service.throttle) == {"neutral": 1}


async def test_dynamic_fallback_gets_cause_and_scope() -> None:
    seen: list[FallbackContext] = []

    async def computed(context: FallbackContext) -> HttpAnswer:
        await anyio.lowlevel.checkpoint()
        seen.append(context)
        return HttpAnswer(200, (), context.args[0]["path"].encode())

    service = with_fallback(dynamic=computed)
    answer = await service.ask(BOOM, path="/here")
    assert (answer.body, answer.header("x-degraded")) == (b"/here", "dynamic; cause=error")
    assert (seen[0].name, seen[0].cause, seen[0].error) == ("app", "error", BOOM)


async def test_a_dynamic_fallback_must_give_an_http_answer(caplog: pytest.LogCaptureFixture) -> None:
    service = with_fallback(dynamic=lambda _: "a text")
    assert (await service.ask(503)).status == 503
    assert "must give an HttpAnswer, not str" in caplog.text


@pytest.mark.parametrize("raises", [True, False])
async def test_a_fallback_that_fails_leaves_the_apps_own(raises: bool) -> None:
    def broken(_context: FallbackContext) -> HttpAnswer:
        raise ValueError("broken")

    service = with_fallback(dynamic=broken)
    if raises:
        with pytest.raises(RuntimeError, match="boom"):
            await service.ask(BOOM)
    else:
        assert (await service.ask(502)).status == 502


async def test_disconnect_during_dynamic_fallback_counts_as_shed() -> None:
    async def endless(_context: FallbackContext) -> HttpAnswer:
        await anyio.sleep_forever()
        raise AssertionError

    service = with_fallback(dynamic=endless)
    service.throttle.guard("app").force_open()
    with anyio.move_on_after(0.01):
        await service.ask()
    assert counted(service.throttle) == {("shed", "breaker"): 1}


async def test_a_head_request_gets_no_body() -> None:
    answer = await static().ask(500, method="HEAD")
    assert (answer.body, answer.header("content-length")) == (b"", "5")


async def test_a_stale_answer_stands_in_with_its_age() -> None:
    service = stale()
    await service.ask(answering(200, b"old", content_type="text/plain", age="5", cache_control="max-age=10"))
    service.throttle.clock.advance(20.9)
    answer = await service.ask(500)
    assert (answer.status, answer.body) == (200, b"old")
    assert (answer.header("age"), answer.header("content-type")) == ("25", "text/plain")
    assert answer.header("x-degraded") == "stale; cause=error"
    service.throttle.clock.advance(60.0)
    assert (await service.ask(500)).status == 500, "too old"


async def test_the_order_is_stale_then_static() -> None:
    service = with_fallback(stale=True, static=SORRY)
    assert (await service.ask(500)).body == b"sorry"
    await service.ask(200)
    assert (await service.ask(500)).body == b"live"


NOT_KEPT: dict[str, tuple[dict[str, Any], Any]] = {
    "post": ({"method": "POST"}, answering(200)),
    "head": ({"method": "HEAD"}, answering(200)),
    "404": ({}, answering(404)),
    "206": ({}, answering(206)),
    "private": ({}, answering(200, cache_control="private")),
    "no-store": ({}, answering(200, cache_control="no-store")),
    "vary": ({}, answering(200, vary="*")),
    "authorization": ({"headers": {"authorization": "Bearer x"}}, answering(200)),
    "cookie": ({"headers": {"cookie": "a=b"}}, answering(200)),
    "identity": ({"headers": {"x-api-key": "k"}}, answering(200)),
    "large": ({}, answering(200, b"x" * 1001)),
    "half": ({}, breaking_off(None)),
    "broken": ({}, breaking_off(BOOM)),
}


@pytest.mark.parametrize("case", NOT_KEPT)
async def test_uncacheable_responses_are_not_stored(case: str) -> None:
    more, app = NOT_KEPT[case]
    settings = {"identity": "header:X-API-Key", "degrade_cache_body_bytes": 1000, "key_secret": "s" * 20}
    service = stale(settings=settings)
    await service.fails(app, 1) if not more else await service.ask(app, **more)
    assert (await service.ask(500, **more)).status == 500


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer x"}, {"cookie": "a=b"}, {"x-api-key": "k"}], ids=str
)
async def test_with_a_key_of_ones_own_it_is(headers: dict[str, str]) -> None:
    def whose(scope: Any) -> object:
        return tuple(scope["headers"]), scope["path"]

    service = stale(key=whose, settings={"identity": "header:x-api-key", "key_secret": "s" * 20})
    await service.ask(200, headers=headers)
    assert (await service.ask(500, headers=headers)).status == 200
    assert (await service.ask(500, headers={"cookie": "other"})).status == 500


async def test_a_key_that_fails_keeps_nothing() -> None:
    def broken(_scope: Any) -> object:
        raise BOOM

    service = stale(key=broken)
    await service.ask(200)
    assert (await service.ask(500)).status == 500


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/other"},
        {"query_string": b"page=2"},
        {"headers": {"host": "other"}},
        {"scheme": "https"},
        {"raw_path": b"/%2F"},
        {"method": "POST"},
        {"method": "HEAD"},
    ],
    ids=str,
)
async def test_one_answer_does_not_stand_in_for_another(other: dict[str, Any]) -> None:
    service = stale()
    await service.ask(200)
    assert (await service.ask(500)).status == 200
    assert (await service.ask(500, **other)).status == 500


async def test_response_classified_as_failure_is_not_stored() -> None:
    throttle = limits()
    throttle.feature(
        "app", fallback=Fallback(stale=True), classify=lambda seen: Outcome.NEUTRAL if seen == 200 else None
    )
    service = Service(throttle)
    await service.ask(200)
    assert (await service.ask(500)).status == 500


async def test_a_body_too_large_to_keep_is_not_held_either() -> None:
    def keeps() -> int:
        return sum(isinstance(one, CachePolicy) for one in gc.get_objects())

    gc.collect()
    held, before = [], keeps()

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"x" * 600, "more_body": True})
            held.append(keeps() - before)
        await send({"type": "http.response.body"})

    service = stale(settings={"degrade_cache_body_bytes": 1000})
    await service.ask(stream)
    assert held == [1, 0]


async def test_streams_and_iterators_are_kept_as_they_were_sent() -> None:
    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": iter([(b"x-a", b"1")])})
        for part in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    service = stale()
    first = await service.ask(stream)
    assert (first.body, first.header("x-a")) == (b"onetwo", "1")
    second = await service.ask(503)
    assert (second.body, second.header("x-a"), second.header("content-length")) == (b"onetwo", "1", "6")


async def test_a_file_that_the_server_sends_is_not_kept() -> None:
    async def file(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": "/file"})

    service = stale()
    await service.ask(file)
    assert (await service.ask(500)).status == 500


async def test_a_change_makes_forget() -> None:
    service = stale()
    await service.ask(200)
    await service.ask(204, method="PUT")
    assert (await service.ask(500)).status == 500


async def test_a_broken_scope_is_not_kept_and_not_lost() -> None:
    service = stale(settings={"user_limit": "off"})
    answer = await send_scope(
        service.app, {"type": "http", "method": "GET", "path": "/", "headers": None, "client": None}
    )
    assert answer.status == 200


async def test_inner_guard_rejection_is_replaced() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise REFUSED

    answer = await static().ask(ThrottleMiddleware(app, throttle=limits()))
    assert answer.header("x-degraded") == "static; cause=failures"


async def test_request_admitted_after_opening_gets_fallback() -> None:
    service = static()
    throttle = service.throttle
    guard = throttle.guard("app")
    admit = throttle.admission.try_admit

    def opening(demand: Any, work_class: str = "") -> Any:
        verdict = admit(demand, work_class)
        guard.force_open()
        return verdict

    throttle.admission.try_admit = opening  # type: ignore[method-assign]
    answer = await service.ask()
    assert (answer.body, service.calls) == (b"sorry", 0)
    assert counted(throttle) == {("admitted", "ok"): 1}
    assert outcomes(throttle) == {"neutral": 1}


async def test_two_apps_of_one_throttle_do_not_answer_for_each_other() -> None:
    throttle = limits()
    throttle.feature("one", fallback=Fallback(static=SORRY))
    one = ThrottleMiddleware(answering(500), throttle=throttle, breaker="one")
    two = ThrottleMiddleware(answering(500), throttle=throttle, breaker="two")
    assert [(await request(app)).status for app in (one, two)] == [200, 500]
