"""Resource quotas over a real app: rejection response, advice in the state, header of a client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from autoglm_throttle import Demand, Permit, Priority, RoutePolicy, ThrottleMiddleware, mark
from autoglm_throttle.settings import ResourcePolicy
from autoglm_throttle.testing import (
    FakeGpu,
    ManualClock,
    ManualThrottle,
    assert_admitted,
    assert_shed,
    throttle_for_tests,
)
from autoglm_throttle.types import ResourceAdvice
from tests.asgi.run_app import connect, request
from tests.asgi.scopes import make, scope

GB = 10**9
LABELS = "fp16,bf16,int8"


@mark(priority="low")
async def say(request: Request) -> JSONResponse:
    hint = getattr(request.state, "autoglm_throttle", None)
    return JSONResponse(None if hint is None else [hint.precision, hint.compute_priority, hint.memory_bytes])


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(websocket.state.autoglm_throttle.precision)
    await websocket.close()


def service(**settings: Any) -> tuple[ThrottleMiddleware, ManualThrottle]:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.memory_total_bytes = 100 * GB
    throttle = throttle_for_tests(clock=clock, gpu=gpu, **{"quotas": True, "precisions": LABELS, **settings})
    throttle.tick()
    routes = [Route("/say", say), Route("/health", say), WebSocketRoute("/ws", socket)]
    return ThrottleMiddleware(Starlette(routes=routes), throttle=throttle), throttle


async def get(app: Any, path: str = "/say", **fields: str) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        return await client.get(path, headers=headers)


def fill(throttle: ManualThrottle, used_gb: int) -> None:
    """Let a request that states it take so much of the device memory."""
    permit = throttle.try_admit(Demand(Priority.HIGH, memory_bytes=used_gb * GB))
    assert isinstance(permit, Permit)
    throttle.gpu.memory_used_bytes = used_gb * GB
    throttle.tick()


async def test_the_app_finds_the_hint_in_its_state() -> None:
    app, throttle = service()
    answer = await get(app)
    assert_admitted(answer)
    assert answer.json() == ["fp16", 9, 50 * GB]
    fill(throttle, 40)
    assert (await get(app)).json() == ["fp16", 9, 10 * GB]


async def test_quota_rejection_response() -> None:
    app, throttle = service()
    fill(throttle, 60)
    answer = await get(app)
    assert_shed(answer)
    assert answer.status_code == 503
    body = answer.json()
    assert (body["reason"], body["violated-policies"]) == ("gpu:memory", ["memory"])
    assert answer.headers["retry-after"] == "1"
    throttle.gpu.memory_used_bytes = 10 * GB
    throttle.tick()
    assert_admitted(await get(app))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ("int8", "int8"),
        (" BF16 ", "bf16"),
        ("fp16", "fp16"),
        ("fp64", "fp16"),
        ("", "fp16"),
        ("é" * 9000, "fp16"),
    ],
)
async def test_a_client_may_ask_for_less(stated: str, told: str) -> None:
    app, _ = service()
    answer = await request(app, "/say", headers={"x-precision": stated})
    assert json.loads(answer.body)[0] == told


async def test_a_client_may_not_ask_for_more() -> None:
    app, throttle = service(tiers="85:0.7")
    throttle.gpu.utilization_pct = 90.0
    throttle.tick(3)
    assert (await get(app, x_precision="fp16")).json()[0] == "int8"


async def test_route_may_have_own_labels() -> None:
    policy = ResourcePolicy(precision_hint="fp8,int4", compute_priority="high", gpu_memory_ratio=0.3)
    app, throttle = service(routes=[RoutePolicy("/say", resource_policy=policy)], precisions=())
    assert (await get(app)).json() == ["fp8", 0, 30 * GB]
    assert (await get(app, x_precision="int4")).json()[0] == "int4"
    fill(throttle, 40)
    assert_shed(await get(app))


async def test_websocket_gets_advice_too() -> None:
    app, _ = service()
    answer = await connect(app, "/ws")
    assert [m["text"] for m in answer.messages if m["type"] == "websocket.send"] == ["fp16"]


async def test_exempt_request_gets_no_advice() -> None:
    app, _ = service()
    assert (await get(app, "/health")).json() is None


async def test_the_state_of_the_server_stays() -> None:
    app, _ = service()
    seen: dict[str, Any] = {}

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["state"])

    throttle = app.throttle
    inner = ThrottleMiddleware(look, throttle=throttle)
    await request(inner, "/", state={"model": "loaded"})
    assert seen["model"] == "loaded"
    assert isinstance(seen["autoglm_throttle"], ResourceAdvice)


async def test_without_quotas_there_is_no_advice() -> None:
    app, _ = service(quotas=False, precisions=())
    assert (await get(app)).json() is None


async def test_marks_are_found_beside_advice() -> None:
    app, throttle = service()
    await get(app)
    low = [n for (priority, _, _), n in throttle.snapshot().requests.items() if priority is Priority.LOW]
    assert sum(low) == 1


def test_labels_header_is_read_only_with_labels() -> None:
    stated = scope([(b"x-precision", b"int8")])
    assert make(quotas=True, precisions=LABELS).demand(stated).precision == "int8"
    assert make(quotas=False, precisions=LABELS).demand(stated).precision == ""
    assert make(quotas=True).demand(stated).precision == ""
    assert make(quotas=True, precisions="fp16").demand(stated).precision == ""
