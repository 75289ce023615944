"""A request has no slot while its body is on the way, and a body without progress ends it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from autoglm_throttle import Priority
from autoglm_throttle.asgi.receive import BUFFER_BYTES
from autoglm_throttle.asgi.slot_watch import SlotWatch
from autoglm_throttle.settings import RoutePolicy
from tests.asgi.queued_clients import FULL_MID, part, settled, used
from tests.asgi.run_app import request
from tests.asgi.slot_scenes import Scene, chunk, head
from tests.asgi.streams import outcomes

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
POST: dict[str, Any] = {"method": "POST", "headers": {"content-length": "100000000"}}


def on(backend: str, scene: Any) -> None:
    """Run a scene in a task group of its own."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            await scene(group)
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@BACKENDS
def test_heads_without_bodies_hold_no_slot(backend: str) -> None:
    async def scene(group: Any) -> None:
        heads = Scene(group, 2)
        stages = [await heads.comes(**POST) for _ in range(64)]
        assert heads.in_flight == 0
        assert used(heads.throttle) == 64
        other = await heads.comes()
        assert other.is_inside
        stages[40].client.sends(part(b"all", more=False))
        await settled()
        assert [one.is_inside for one in stages].count(True) == 1
        assert heads.in_flight == 2
        for number in range(40):
            stages[number].client.leaves()
        await settled()
        assert used(heads.throttle) == 25

    on(backend, scene)


@BACKENDS
def test_body_that_never_comes_is_answered_with_408(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, body_timeout_s=30.0)
        stage = await bodies.comes(**POST)
        await bodies.passes(29.9)
        assert not stage.client.ended.is_set()
        await bodies.passes(0.2)
        answer = stage.client.answer
        assert answer.status == 408
        assert answer.header("connection") == "close"
        assert json.loads(answer.body)["status"] == 408
        assert stage.client.error is None
        assert bodies.oddities("body_timeout") == 1
        assert outcomes(bodies.throttle) == {}
        assert bodies.throttle.snapshot().tokens[Priority.MID] == FULL_MID

    on(backend, scene)


async def test_connection_field_is_left_out_of_http_2() -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group)
        stage = await bodies.comes(method="POST", http_version="2")
        await bodies.passes(31.0)
        assert stage.client.answer.status == 408
        assert stage.client.answer.header("connection") is None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
async def test_slow_body_is_answered_in_the_dialect_of_its_path(path: str) -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group)
        stage = await bodies.comes(path=path, **POST)
        await bodies.passes(31.0)
        error = json.loads(stage.client.answer.body)["error"]
        assert (error["type"], error["message"][:8]) == ("invalid_request_error", "The body")


@pytest.mark.parametrize(("per_second", "status"), [(1, 408), (400, 408), (600, 0)])
async def test_least_rate_of_a_body_is_500_bytes_per_second(per_second: int, status: int) -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group, body_timeout_s=10.0)
        stage = await bodies.comes(**POST)
        for _ in range(80):
            stage.client.sends(part(b"x" * per_second))
            await settled()
            await bodies.passes(1.0)
        assert stage.client.answer.status == status
        group.cancel_scope.cancel()


async def test_client_that_leaves_during_its_body_gets_nothing() -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group)
        stage = await bodies.comes(part(b"half"), **POST)
        stage.client.leaves()
        await stage.client.ended.wait()
        assert stage.client.answer.messages == []
        assert bodies.throttle.snapshot().oddities["body_timeout"] == 0
        assert outcomes(bodies.throttle) == {}


async def test_more_bodies_than_may_be_paused_are_rejected_unless_complete() -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group, paused_max=2)
        waiting = [await bodies.comes(**POST) for _ in range(2)]
        third = await bodies.comes(**POST)
        await bodies.passes(0.0)
        assert third.client.answer.status == 503
        assert json.loads(third.client.answer.body)["reason"] == "queue:paused"
        whole = await bodies.comes(part(b"all", more=False), **POST)
        assert whole.is_inside
        waiting[0].client.leaves()
        await settled()
        fourth = await bodies.comes(**POST)
        await bodies.passes(0.0)
        assert not fourth.client.ended.is_set()
        group.cancel_scope.cancel()


@BACKENDS
def test_larger_body_has_a_slot_only_while_its_parts_come(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 1)
        stage = await bodies.comes(part(b"x" * BUFFER_BYTES), **POST)
        assert stage.is_inside
        stage.receives()
        stage.receives()  # there is no second part yet
        await settled()
        assert (bodies.in_flight, len(stage.received)) == (1, 1)
        await bodies.passes(1.1)
        assert (bodies.in_flight, bodies.paused) == (0, 1)
        other = await bodies.comes()
        assert other.is_inside
        stage.client.sends(part(b"rest", more=False))
        await settled()
        assert stage.received[1]["body"] == b"rest"
        assert (bodies.in_flight, bodies.paused) == (2, 0)

    on(backend, scene)


@BACKENDS
def test_app_that_awaits_a_body_without_progress_gets_a_disconnect_and_its_client_408(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 1, body_timeout_s=10.0)
        stage = await bodies.comes(part(b"x" * BUFFER_BYTES), **POST)
        for _ in range(3):
            stage.receives()
        await settled()
        await bodies.passes(10.0 + BUFFER_BYTES / 500.0 + 1.0)
        kinds = [message["type"] for message in stage.received]
        assert kinds == ["http.request", "http.disconnect", "http.disconnect"]
        assert stage.client.answer.status == 408
        stage.sends(head(status=500), chunk(more=False))
        stage.ends()
        await stage.client.ended.wait()
        assert stage.client.answer.status == 408
        assert len(stage.client.answer.messages) == 2
        assert bodies.oddities("body_timeout") == 1
        assert outcomes(bodies.throttle) == {"neutral": 1}
        assert (bodies.in_flight, bodies.paused) == (0, 0)

    on(backend, scene)


@pytest.mark.parametrize("fields", [{}, {"content-length": "0"}])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
async def test_request_without_body_never_meets_the_watch(
    method: str, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Any] = []
    monkeypatch.setattr(SlotWatch, "add", lambda _watch, watched: added.append(watched))

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(head((b"content-length", b"2")))
        await send(chunk(b"ok", more=False))

    async with anyio.create_task_group() as group:
        plain = Scene(group)
        plain.middleware.app = app
        answer = await request(plain.app, "/", method, headers=fields)
    assert answer.status == 200
    assert added == []
    assert plain.middleware.slot_watch.watched == 0


async def test_route_with_stream_slots_does_not_await_its_body() -> None:
    async with anyio.create_task_group() as group:
        talk = Scene(group, 1, routes=[RoutePolicy("/talk", slot="stream")])
        stage = await talk.comes(path="/talk", **POST)
        assert stage.is_inside
        stage.receives()
        await settled()
        await talk.passes(1.1)
        assert (talk.in_flight, talk.paused) == (0, 1)
        await talk.passes(1000.0)
        assert not stage.client.ended.is_set()
        group.cancel_scope.cancel()


async def test_route_without_slots_holds_none_and_awaits_no_body() -> None:
    async with anyio.create_task_group() as group:
        free = Scene(group, 1, routes=[RoutePolicy("/free", slot="none")])
        stages = [await free.comes(path="/free", **POST) for _ in range(5)]
        assert all(stage.is_inside for stage in stages)
        assert free.in_flight == 0
        group.cancel_scope.cancel()
