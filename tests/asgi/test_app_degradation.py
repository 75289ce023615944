"""An app whose requests are rejected for load or degraded by it: what stands in, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from autoglm_throttle import Priority, Reason, ThrottleMiddleware
from autoglm_throttle.asgi.scope import attribute_to_throttle
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.testing import ManualThrottle
from autoglm_throttle.types import BreakerState, Decision, FallbackContext, Rejected
from tests.asgi.guarded_app import (
    BOOM,
    SORRY,
    answering,
    counted,
    degraded,
    limits,
    plain,
    stale,
    static,
    with_fallback,
)
from tests.asgi.queued_clients import ROOMY, settled, taken
from tests.asgi.run_app import never, send_scope, websocket_scope

FULL: dict[str, Any] = {"inflight_start": 1, "inflight_floor": 1, "inflight_max": 1, "queue_max": 1}


def shut(throttle: ManualThrottle) -> None:
    """Let the GPU be so busy that no request is admitted."""
    throttle.gpu.utilization_pct = 99
    throttle.tick(3)


def laden(throttle: ManualThrottle, load: float) -> None:
    """Report so much load to the degradation controller, often enough, while requests are admitted."""
    regime = replace(throttle.control_state(), load=load)
    throttle.control_state = lambda: regime  # type: ignore[method-assign]
    throttle.tick(4)


@pytest.mark.parametrize(("reason", "status"), [(Reason.GPU, 200), (Reason.QUEUE, 200), (Reason.USER, 429)])
async def test_rejected_additional_charge(reason: Reason, status: int) -> None:
    service = static()
    answer = await service.ask(Rejected(Decision(False, reason, f"{reason}:x", "x", retry_after_s=1.0)))
    assert answer.status == status
    assert service.breaker.streak == 0
    assert answer.header("x-degraded") == ("static; cause=load" if status == 200 else None)


async def test_additional_charge_is_not_replaced_by_costly_fallback() -> None:
    service = with_fallback(dynamic=lambda _: SORRY)
    answer = await service.ask(Rejected(Decision(False, Reason.GPU, "gpu:x", "gpu", retry_after_s=1.0)))
    assert answer.status == 503


async def test_final_rejection_is_not_replaced() -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        attribute_to_throttle(scope)
        await plain(send, 503, b"closed")

    service = static()
    assert (await service.ask(app)).body == b"closed"
    assert service.breaker.streak == 0


async def test_load_rejection_is_replaced() -> None:
    service = static()
    shut(service.throttle)
    answer = await service.ask()
    assert (answer.status, answer.body, service.calls) == (200, b"sorry", 0)
    assert answer.header("x-degraded") == "static; cause=load"
    assert counted(service.throttle) == {("degraded", "gpu"): 1}
    assert service.throttle.snapshot().requests[Priority.MID, "shed", Reason.GPU] == 0


async def test_load_rejection_is_not_replaced_by_costly_fallback() -> None:
    service = with_fallback(dynamic=lambda _: SORRY)
    shut(service.throttle)
    assert (await service.ask()).status == 503
    cheap = with_fallback(dynamic=lambda _: SORRY, under_load=True)
    shut(cheap.throttle)
    assert (await cheap.ask()).header("x-degraded") == "dynamic; cause=load"


async def test_queue_rejection_is_replaced() -> None:
    service = static(settings={**ROOMY, **FULL})
    inside, release = anyio.Event(), anyio.Event()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        inside.set()
        await release.wait()
        await plain(send, 200, b"live")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.ask, slow)
        await inside.wait()
        tasks.start_soon(service.ask)
        await settled()
        assert taken(service.throttle) == (1, 1, 1)
        answer = await service.ask()
        release.set()
    assert (answer.body, answer.header("x-degraded")) == (b"sorry", "static; cause=load")
    assert counted(service.throttle) == {("admitted", "ok"): 2, ("degraded", "queue"): 1}


async def test_user_limit_rejection_is_not_replaced() -> None:
    service = static(settings={"user_limit": "1/minute"})
    assert [(await service.ask()).status for _ in range(2)] == [200, 429]
    assert counted(service.throttle) == {("admitted", "ok"): 1, ("limited", "user"): 1}


async def test_rejection_without_fallback_is_counted_once() -> None:
    service = stale()
    shut(service.throttle)
    answer = await service.ask()
    assert (answer.status, json.loads(answer.body)["reason"]) == (503, "gpu:overload")
    assert counted(service.throttle) == {("shed", "gpu"): 1}


@pytest.mark.parametrize("load", [0.85, 0.92])
async def test_degradation_sheds_non_core_apps(load: float) -> None:
    service = static(criticality="non_core")
    laden(service.throttle, load)
    answer = await service.ask()
    assert (answer.body, answer.header("x-degraded"), service.calls) == (b"sorry", "static; cause=load", 0)
    assert counted(service.throttle) == {("degraded", "gpu"): 1}


async def test_shed_app_without_fallback_is_rejected() -> None:
    service = with_fallback(criticality="non_core")
    laden(service.throttle, 0.85)
    answer = await service.ask()
    assert (answer.status, json.loads(answer.body)["reason"], service.calls) == (503, "gpu:shed", 0)
    assert float(answer.header("retry-after") or 0) >= 1
    assert counted(service.throttle) == {("shed", "gpu"): 1}
    assert degraded(service.throttle) == {("app", "shed", "load"): 1}
    assert service.breaker.calls == 0


async def test_websockets_are_shed_too() -> None:
    service = static(criticality="non_core")
    laden(service.throttle, 0.85)
    answer = await send_scope(service.app, websocket_scope(), [{"type": "websocket.connect"}])
    assert (answer.close_code, answer.messages[0]["reason"]) == (1013, "gpu:shed")


@pytest.mark.parametrize(
    ("load", "body"), [(0.70, b"live"), (0.85, b"live"), (0.92, b"live"), (0.96, b"sorry")]
)
async def test_a_core_app_is_answered_by_static_at_the_last_step(load: float, body: bytes) -> None:
    service = static()
    laden(service.throttle, load)
    assert (await service.ask()).body == body


@pytest.mark.parametrize(("load", "body"), [(0.85, b"new"), (0.92, b"old"), (0.96, b"old")])
async def test_a_core_app_is_answered_from_memory_before_that(load: float, body: bytes) -> None:
    service = stale()
    await service.ask(answering(200, b"old"))
    service.throttle.clock.advance(2.0)
    laden(service.throttle, load)
    answer = await service.ask(answering(200, b"new"))
    assert answer.body == body
    unknown = await service.ask(path="/other")
    assert unknown.body == b"new"
    if body == b"old":
        assert answer.header("x-degraded") == "stale; cause=load"
        assert int(answer.header("age") or 0) >= 2
        assert counted(service.throttle)["degraded", "gpu"] == 1


async def test_failing_degraded_fallback_leaves_call_to_app() -> None:
    def broken(_context: FallbackContext) -> HttpAnswer:
        raise BOOM

    service = with_fallback(dynamic=broken, under_load=True)
    laden(service.throttle, 0.96)
    assert (await service.ask(200)).body == b"live"
    assert counted(service.throttle) == {("admitted", "ok"): 1}


async def test_dry_run_calls_app_despite_degradation() -> None:
    service = static(criticality="non_core", settings={"dry_run": True})
    laden(service.throttle, 0.96)
    assert (await service.ask(200)).body == b"live"
    await service.fails()
    assert (await service.ask(200)).body == b"live"
    assert "degraded" not in {name for name, _ in counted(service.throttle)}


async def test_inner_throttle_load_rejections_are_replaced() -> None:
    busy = limits()
    shut(busy)
    service = static()
    assert (await service.ask(ThrottleMiddleware(never, throttle=busy))).body == b"sorry"

    async def lost(_scope: Any, _receive: Any, _send: Any) -> None:
        raise Rejected(Decision(False, Reason.STORE, "store:timeout", "store", retry_after_s=1.0))

    assert (await service.ask(ThrottleMiddleware(lost, throttle=limits()))).status == 503
    strict = limits(user_limit="1/minute")
    inner = ThrottleMiddleware(answering(200), throttle=strict)
    assert [(await service.ask(inner)).status for _ in range(2)] == [200, 429]
    assert service.state() is BreakerState.CLOSED
