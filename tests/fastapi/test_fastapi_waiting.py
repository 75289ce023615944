"""The additional charge where the requests in flight are limited: one request never takes two places."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.responses import StreamingResponse

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.fastapi import limit
from autoglm_throttle.testing import ManualThrottle
from tests.asgi.queued_clients import REQUEST, Client, settled, taken, used, with_places
from tests.asgi.run_app import http_scope, websocket_scope


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


class Rooms:
    """Endpoints that stay inside until they are released.

    Args:
        charges: what each of them depends on.
    """

    def __init__(self, *charges: Any) -> None:
        self.goes_on = anyio.Event()
        self.inside = 0
        self.router = APIRouter(dependencies=[Depends(charge) for charge in charges])
        self.router.get("/")(self.stay)

    async def stay(self) -> str:
        self.inside += 1
        await self.goes_on.wait()
        return "stayed"


def added(throttle: ManualThrottle, rooms: Rooms) -> Any:
    app = FastAPI()
    app.include_router(rooms.router)
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def wrapped(throttle: ManualThrottle, rooms: Rooms) -> Any:
    app = FastAPI()
    app.include_router(rooms.router)
    return ThrottleMiddleware(app, throttle=throttle)


def alone(throttle: ManualThrottle, rooms: Rooms) -> Any:
    app = FastAPI()
    app.include_router(rooms.router)
    return app


INSIDE = [added, wrapped]


@pytest.mark.parametrize("attach", INSIDE)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("charges", [1, 3])
async def test_behind_the_middleware_it_takes_no_further_slot(
    attach: Callable[..., Any], own: bool, charges: int
) -> None:
    throttle = with_places(1)
    rooms = Rooms(*(limit(cost=2, throttle=throttle if own else None) for _ in range(charges)))
    app = attach(throttle, rooms)
    first, second = (Client(app, http_scope(), REQUEST) for _ in range(2))
    with anyio.fail_after(60.0):
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await settled()
            group.start_soon(second.run)
            await settled()
            assert rooms.inside == 1
            assert taken(throttle) == (1, 1, 1)
            rooms.goes_on.set()
    assert (first.answer.status, second.answer.status) == (200, 200)
    assert taken(throttle) == (0, 0, 0)
    assert used(throttle) == 2 * (1 + 2 * charges)


@pytest.mark.parametrize("charges", [1, 3])
async def test_with_a_throttle_of_its_own_the_request_takes_one_place(charges: int) -> None:
    throttle = with_places(1)
    rooms = Rooms(*(limit(throttle=throttle) for _ in range(charges)))
    app = alone(throttle, rooms)
    first, second = (Client(app, http_scope(), REQUEST) for _ in range(2))
    with anyio.fail_after(60.0):
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await settled()
            group.start_soon(second.run)
            await settled()
            assert rooms.inside == 1
            assert taken(throttle) == (1, 1, charges)
            rooms.goes_on.set()
    assert (first.answer.status, second.answer.status) == (200, 200)
    assert taken(throttle) == (0, 0, 0)


async def test_two_throttles_of_its_own_are_a_place_each() -> None:
    one, other = with_places(1), with_places(1)
    rooms = Rooms(limit(throttle=one), limit(throttle=other), limit(throttle=one))
    app = alone(one, rooms)
    async with anyio.create_task_group() as group:
        group.start_soon(Client(app, http_scope(), REQUEST).run)
        await settled()
        assert (taken(one), taken(other)) == ((1, 0, 2), (1, 0, 1))
        rooms.goes_on.set()
    assert taken(one) == taken(other) == (0, 0, 0)


async def test_own_throttle_rejects_after_a_queue_timeout() -> None:
    throttle = with_places(1, slo_s=4.0, wait_budget=0.25)
    rooms = Rooms(limit(throttle=throttle))
    app = alone(throttle, rooms)
    first, second = (Client(app, http_scope(), REQUEST) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(first.run)
        await settled()
        group.start_soon(second.run)
        await settled()
        throttle.clock.advance(1.0)
        rooms.goes_on.set()
    assert (first.answer.status, second.answer.status) == (200, 503)
    assert second.answer.header("retry-after")
    assert taken(throttle) == (0, 0, 0)


async def test_rejected_second_charge_returns_the_slot() -> None:
    throttle = with_places(1, user_limit="3/minute")
    app = alone(throttle, Rooms(limit(throttle=throttle), limit(cost=5, throttle=throttle)))
    async with client(app) as caller:
        assert [(await caller.get("/")).status_code for _ in range(2)] == [413, 413]
    assert taken(throttle) == (0, 0, 0)


async def test_a_stream_holds_the_place_of_its_dependency() -> None:
    throttle = with_places(1)
    goes_on = anyio.Event()
    app = FastAPI()

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        await goes_on.wait()
        yield b"two"

    @app.get("/", dependencies=[Depends(limit(throttle=throttle))])
    async def root() -> StreamingResponse:
        return StreamingResponse(parts())

    caller = Client(app, http_scope(), REQUEST)
    async with anyio.create_task_group() as group:
        group.start_soon(caller.run)
        await settled(100)
        assert caller.answer.body == b"one"
        assert taken(throttle) == (1, 0, 1)
        goes_on.set()
    assert taken(throttle) == (0, 0, 0)


@pytest.mark.parametrize(("websockets", "places"), [("rate", 0), ("slot", 1)])
@pytest.mark.parametrize("inside", [True, False])
async def test_websocket_takes_the_slot_of_the_setting(websockets: str, places: int, inside: bool) -> None:
    throttle = with_places(1, websockets=websockets)
    app = FastAPI()

    @app.websocket("/ws", dependencies=[Depends(limit(throttle=throttle)), Depends(limit(throttle=throttle))])
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        async for _ in socket.iter_text():
            pass

    if inside:
        app.add_middleware(ThrottleMiddleware, throttle=throttle)
    talker = Client(app, websocket_scope("/ws"), {"type": "websocket.connect"})
    async with anyio.create_task_group() as group:
        group.start_soon(talker.run)
        await settled(100)
        assert talker.answer.status == 101
        assert taken(throttle) == (places, 0, 1 if inside else 2)
        talker.leaves()
    assert taken(throttle) == (0, 0, 0)
