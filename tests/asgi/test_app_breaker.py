"""Apps behind a breaker: opening, rejection, trials, and breakers within breakers."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from autoglm_throttle import Priority, Reason, Throttle, ThrottleMiddleware
from autoglm_throttle.asgi.scope import verdicts_of
from autoglm_throttle.settings import BreakerSettings
from autoglm_throttle.testing import assert_shed
from autoglm_throttle.types import BreakerMode, BreakerState
from tests.asgi.guarded_app import (
    BOOM,
    FAILURES,
    REFUSED,
    Service,
    answering,
    breaking_off,
    counted,
    limits,
    outcomes,
    plain,
    with_fallback,
)
from tests.asgi.queued_clients import settled, taken, with_places
from tests.asgi.run_app import Answer, http_scope, never, request, send_scope, websocket_scope


async def test_caller_of_opening_failure_gets_own_response() -> None:
    service = Service()
    answers = [await service.ask(500) for _ in range(FAILURES)]
    assert service.breaker.calls == FAILURES
    assert [(answer.status, answer.body) for answer in answers] == [(500, b"live")] * FAILURES


async def test_open_it_answers_before_any_limit_is_asked() -> None:
    service = Service(limits(user_limit=f"{FAILURES}/minute"))
    await service.fails()
    answer = await service.ask(200)
    assert service.calls == FAILURES
    assert_shed([*answer.messages], "breaker")
    assert json.loads(answer.body) == {
        "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "The service cannot answer this at present; try again in 10 s.",
        "violated-policies": ["breaker"],
        "reason": "breaker:app",
        "retry_after_s": 10.0,
    }
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("10", "10000")
    assert counted(service.throttle) == {("admitted", "ok"): FAILURES, ("shed", "breaker"): 1}


async def test_rejection_charges_nothing() -> None:
    service = Service()
    await service.fails()
    before = service.throttle.snapshot()
    await service.ask()
    after = service.throttle.snapshot()
    assert after.tokens == before.tokens
    assert after.outcomes == before.outcomes
    assert sum(after.active.values()) == 0


async def test_outer_middleware_finds_the_rejection() -> None:
    service = Service()
    service.throttle.guard("app").force_open()
    scope = http_scope()
    await send_scope(service.app, scope)
    assert verdicts_of(scope)[service.throttle].decision.reason is Reason.BREAKER


async def test_rejection_counts_as_arrival() -> None:
    throttle = with_places(10)
    service = Service(throttle)
    throttle.guard("app").force_open()
    for _ in range(130):  # without completions a period lasts as long as the objective, a minute
        await service.ask()
        throttle.tick()
    gate = throttle.snapshot().concurrency
    assert gate is not None
    assert gate.demand_rps[Priority.MID] > 0.5


async def test_retry_after_is_never_less_than_a_second() -> None:
    service = Service()
    await service.fails()
    service.throttle.clock.advance(9.9)
    answer = await service.ask()
    assert (answer.header("retry-after"), answer.header("retry-after-ms")) == ("1", "1000")


async def test_retry_after_has_the_usual_jitter() -> None:
    service = Service(limits(retry_jitter=1.0))
    await service.fails()
    waits = {int((await service.ask()).header("retry-after-ms") or 0) for _ in range(50)}
    assert len(waits) > 1
    assert all(10_000 <= wait_ms <= 20_000 for wait_ms in waits)


async def test_after_its_time_one_trial_passes_and_closes_it() -> None:
    service = Service()
    await service.fails()
    service.throttle.clock.advance(10.0)
    inside, release = anyio.Event(), anyio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        inside.set()
        await release.wait()
        await plain(send, 200, b"live")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.ask, slow)
        await inside.wait()
        others = [(await service.ask()).status for _ in range(20)]
        release.set()
    assert others == [503] * 20
    assert service.state() is BreakerState.CLOSED
    assert (await service.ask(200)).status == 200


async def test_a_trial_that_fails_opens_it_again() -> None:
    service = Service()
    await service.fails()
    service.throttle.clock.advance(10.0)
    assert (await service.ask(500)).status == 500
    assert (service.state(), service.breaker.retry_after_s) == (BreakerState.OPEN, 10.0)


async def test_request_admitted_after_opening_is_rejected() -> None:
    """A request may be queued between the check of the breaker and its permit."""
    service = Service(with_places(1))
    inside, release = anyio.Event(), anyio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        inside.set()
        await release.wait()
        await plain(send, 500, b"")

    throttle = service.throttle
    answers: list[Answer] = []

    async def client() -> None:
        answers.append(await service.ask())

    async with anyio.create_task_group() as tasks:
        service.answers = slow
        tasks.start_soon(client)
        await inside.wait()
        tasks.start_soon(client)
        await settled()
        assert taken(throttle) == (1, 1, 1)
        throttle.guard("app").force_open()
        release.set()
    assert [answer.status for answer in answers] == [500, 503]
    assert service.calls == 1
    assert outcomes(throttle) == {"failure": 1, "neutral": 1}
    assert counted(throttle) == {("admitted", "ok"): 2}
    assert json.loads(answers[1].body)["reason"] == "breaker:app"


async def test_a_cancelled_trial_gives_its_place_back() -> None:
    service = Service()
    await service.fails()
    service.throttle.clock.advance(10.0)

    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(0.01):
        await service.ask(endless)
    assert service.state() is BreakerState.HALF_OPEN
    assert (await service.ask(200)).status == 200
    assert service.state() is BreakerState.CLOSED


async def test_websockets_fail_by_raising() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        raise BOOM

    service = Service(answers=app)
    for _ in range(FAILURES):
        with pytest.raises(RuntimeError):
            await send_scope(service.app, websocket_scope(), [{"type": "websocket.connect"}])
    assert service.state() is BreakerState.OPEN
    refused = await send_scope(service.app, websocket_scope(), [{"type": "websocket.connect"}])
    assert refused.close_code == 1013
    assert refused.messages[0]["reason"] == "breaker:app"
    denied = await send_scope(service.app, websocket_scope(denial=True), [{"type": "websocket.connect"}])
    assert denied.status == 503


async def test_the_reason_of_a_close_frame_is_never_too_long() -> None:
    throttle = limits()
    app = ThrottleMiddleware(never, throttle=throttle, breaker="ü" * 150)
    throttle.guard("ü" * 150).force_open()
    answer = await send_scope(app, websocket_scope(), [{"type": "websocket.connect"}])
    assert answer.messages[0]["reason"] == "breaker:" + "ü" * 57


async def test_exempt_requests_pass_an_open_breaker_and_say_nothing() -> None:
    service = Service(limits(exempt_paths=("/health",)))
    assert [(await service.ask(500, "/health")).status for _ in range(FAILURES)] == [500] * FAILURES
    assert service.state() is BreakerState.CLOSED
    await service.fails()
    assert (await service.ask(200, "/health")).status == 200
    preflight = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    assert (await service.ask(200, method="OPTIONS", headers=preflight)).status == 200


async def test_metrics_only_lets_all_in_and_counts() -> None:
    service = with_fallback(breaker=BreakerSettings(mode=BreakerMode.METRICS_ONLY))
    await service.fails()
    assert [(await service.ask(500)).status for _ in range(4)] == [500] * 4
    assert service.breaker.would_reject == 4
    assert counted(service.throttle) == {("admitted", "ok"): FAILURES + 4}


async def test_a_dry_run_lets_all_in_and_counts() -> None:
    service = Service(limits(dry_run=True))
    await service.fails()
    assert [(await service.ask(500)).status for _ in range(4)] == [500] * 4
    assert service.throttle.snapshot().would_reject[Priority.MID, Reason.BREAKER] == 4
    assert service.state() is BreakerState.OPEN
    service.throttle.clock.advance(10.0)
    await service.ask(200)
    assert service.state() is BreakerState.CLOSED


async def test_inner_guard_rejection_is_answered_and_opens_nothing() -> None:
    service = Service(answers=REFUSED)
    for _ in range(2 * FAILURES):
        answer = await service.ask()
        assert answer.status == 503
        assert json.loads(answer.body)["reason"] == "breaker:vectors"
        assert b"secret" not in answer.body
        assert answer.header("retry-after") == "8"
    assert service.state() is BreakerState.CLOSED
    assert outcomes(service.throttle) == {"neutral": 2 * FAILURES}


async def test_that_is_answered_without_a_breaker_too() -> None:
    throttle = limits()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise REFUSED

    answer = await request(ThrottleMiddleware(app, throttle=throttle))
    assert_shed([*answer.messages], "breaker")
    assert outcomes(throttle) == {"neutral": 1}
    assert counted(throttle) == {("admitted", "ok"): 1}


@pytest.mark.parametrize("breaker", [None, "app"])
async def test_once_the_answer_has_begun_it_is_raised(breaker: str | None) -> None:
    throttle = limits()
    app = ThrottleMiddleware(breaking_off(REFUSED), throttle=throttle, breaker=breaker)
    with pytest.raises(type(REFUSED)):
        await request(app)
    assert outcomes(throttle) == {"neutral": 1}


async def test_limits_of_another_throttle_inside_open_nothing() -> None:
    inner = limits(user_limit="1/minute", policy="tiers")
    inner.gpu.utilization_pct = 99
    inner.tick(3)
    service = Service(answers=ThrottleMiddleware(never, throttle=inner))
    assert [(await service.ask()).status for _ in range(FAILURES)] == [503] * FAILURES
    assert service.state() is BreakerState.CLOSED


async def test_one_breaker_inside_another_opens_alone() -> None:
    inner = limits()
    app = ThrottleMiddleware(answering(500), throttle=inner, breaker="inner")
    throttle = limits(breaker_failures=2 * FAILURES)
    service = Service(throttle, app)
    for _ in range(FAILURES):
        assert (await service.ask()).status == 500
    for _ in range(5 * FAILURES):
        assert json.loads((await service.ask()).body)["reason"] == "breaker:inner"
    assert (service.state(), service.breaker.streak) == (BreakerState.CLOSED, FAILURES)


async def test_one_throttle_may_guard_an_app_within_its_app() -> None:
    throttle = limits()
    part = ThrottleMiddleware(answering(500), throttle=throttle, breaker="part")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (part if scope["path"] == "/part" else answering(200))(scope, receive, send)

    outer = ThrottleMiddleware(app, throttle=throttle)
    assert [(await request(outer, "/part")).status for _ in range(FAILURES + 2)] == [500] * FAILURES + [
        503
    ] * 2
    assert (await request(outer, "/")).status == 200
    assert outcomes(throttle) == {"failure": FAILURES, "neutral": 2, "success": 1}


async def test_the_trial_of_a_stream_may_succeed_with_its_first_item() -> None:
    service = with_fallback(breaker=BreakerSettings(stream_settle="first_item"))
    await service.fails()
    service.throttle.clock.advance(10.0)
    states = []

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        states.append(service.state())
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        states.append(service.state())
        await send({"type": "http.response.body"})

    await service.ask(stream)
    assert states == [BreakerState.HALF_OPEN, BreakerState.CLOSED]
    await service.fails(breaking_off(BOOM))
    assert service.state() is BreakerState.OPEN


def test_a_breaker_is_found_again_by_its_name() -> None:
    throttle: Throttle = limits()
    ThrottleMiddleware(never, throttle=throttle, breaker="app")
    throttle.feature("app", ignore=[KeyError])  # after the middleware, before the first request
    assert throttle.guard("app").state() is BreakerState.CLOSED


async def test_a_middleware_can_be_inherited() -> None:
    class Own(ThrottleMiddleware):
        """Subclasses written by users."""

    service = Service()
    app = Own(service.serve, throttle=service.throttle, breaker="app")
    assert [(await request(app)).status for _ in range(2)] == [200, 200]
    service.throttle.guard("app").force_open()
    assert (await request(app)).status == 503
