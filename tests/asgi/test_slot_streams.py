"""A stream has no slot while its reader is slow or it is idle, and takes it again with the next part."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Permit
from autoglm_throttle.asgi import permit_of
from autoglm_throttle.settings import RoutePolicy
from autoglm_throttle.types import Demand
from tests.asgi.queued_clients import settled, taken, with_places
from tests.asgi.run_app import request, websocket_scope
from tests.asgi.slot_scenes import EVENT_STREAM, Scene, Stage, chunk, head
from tests.asgi.streams import outcomes
from tests.asgi.test_slot_bodies import BACKENDS, on


async def feeding(scene: Scene, path: str = "/feed", parts: int = 1) -> Stage:
    """An event stream that has sent some parts."""
    stage = await scene.comes(path=path)
    stage.sends(head(*EVENT_STREAM), *[chunk()] * parts)
    await settled()
    return stage


@BACKENDS
def test_slow_reader_gives_its_slot_back_until_its_part_is_sent(backend: str) -> None:
    async def scene(group: Any) -> None:
        readers = Scene(group, 1)
        stage = await readers.comes()
        stage.client.stops_reading()
        stage.sends(chunk())
        await settled()
        await readers.passes(0.7)
        assert (readers.in_flight, readers.paused) == (1, 0)
        await readers.passes(0.2)
        assert (readers.in_flight, readers.paused) == (0, 1)
        other = await readers.comes()
        assert other.is_inside
        stage.client.reads()
        await settled()
        assert (readers.in_flight, readers.paused) == (2, 0)

    on(backend, scene)


async def test_reader_that_was_slow_once_has_no_slot_during_its_next_parts() -> None:
    async with anyio.create_task_group() as group:
        readers = Scene(group, 1)
        stage = await readers.comes()
        stage.client.stops_reading()
        stage.sends(chunk(), chunk())
        await settled()
        await readers.passes(1.1)
        stage.client.reads()
        stage.client.stops_reading()
        stage.sends(chunk())
        await settled()
        stage.client.reads()
        await settled()
        stage.client.stops_reading()
        stage.sends(chunk())
        await settled()
        assert (readers.in_flight, readers.paused) == (0, 1)
        stage.client.reads()
        await settled()
        assert (readers.in_flight, readers.paused) == (1, 0)
        group.cancel_scope.cancel()


@BACKENDS
def test_reader_below_the_least_rate_ends_as_if_it_had_left(backend: str) -> None:
    async def scene(group: Any) -> None:
        readers = Scene(group, 1, body_timeout_s=10.0)
        stage = await readers.comes()
        stage.client.stops_reading()
        stage.sends(chunk(b"x" * 1000))
        await settled()
        await readers.passes(11.9)
        assert not stage.client.ended.is_set()
        await readers.passes(0.2)
        assert isinstance(stage.client.error, ConnectionError)
        assert outcomes(readers.throttle) == {"neutral": 1}
        assert readers.oddities("slow_reader") == 1
        assert (readers.in_flight, readers.paused) == (0, 0)

    on(backend, scene)


@BACKENDS
def test_idle_event_stream_has_its_slot_only_for_its_parts(backend: str) -> None:
    async def scene(group: Any) -> None:
        feeds = Scene(group, 1)
        stage = await feeding(feeds)
        await feeds.passes(0.7)
        assert (feeds.in_flight, feeds.paused) == (1, 0)
        await feeds.passes(0.2)
        assert (feeds.in_flight, feeds.paused) == (0, 1)
        await feeds.passes(100.0, steps=20)
        stage.sends(chunk(more=False))
        stage.ends()
        await stage.client.ended.wait()
        assert (feeds.in_flight, feeds.paused) == (0, 0)
        assert outcomes(feeds.throttle) == {"success": 1}

    on(backend, scene)


async def test_stream_of_another_type_keeps_its_slot_unless_its_route_declares_it() -> None:
    async with anyio.create_task_group() as group:
        lines = Scene(group, 4, routes=[RoutePolicy("/lines", slot="stream")])
        for path in ("/lines", "/other"):
            stage = await lines.comes(path=path)
            stage.sends(head((b"content-type", b"application/x-ndjson")), chunk())
        await settled()
        await lines.passes(5.0)
        assert (lines.in_flight, lines.paused) == (1, 1)
        group.cancel_scope.cancel()


async def test_prefill_keeps_its_slot_for_four_objectives() -> None:
    async with anyio.create_task_group() as group:
        llm = Scene(group, 1, slo_s=8.0)
        stage = await llm.comes()
        stage.sends(head(*EVENT_STREAM))
        await settled()
        await llm.passes(31.9, steps=8)
        assert (llm.in_flight, llm.paused) == (1, 0)
        await llm.passes(0.2)
        assert (llm.in_flight, llm.paused) == (0, 1)
        stage.sends(chunk())
        await settled()
        assert (llm.in_flight, llm.paused) == (1, 0)
        group.cancel_scope.cancel()


async def test_stream_whose_tokens_come_is_never_paused() -> None:
    async with anyio.create_task_group() as group:
        llm = Scene(group, 1)
        stage = await feeding(llm)
        for _ in range(50):
            await llm.passes(0.2)
            assert (llm.in_flight, llm.paused) == (1, 0)
            stage.sends(chunk())
            await settled()
        group.cancel_scope.cancel()


async def test_feeds_of_an_idle_class_have_no_slot_after_their_first_parts() -> None:
    async with anyio.create_task_group() as group:
        feeds = Scene(group, 2)
        for _ in range(2):
            await feeding(feeds, parts=3)
        await feeds.passes(1.1)
        for number in range(20):
            await feeding(feeds, parts=3)
            assert (feeds.in_flight, feeds.paused) == (0, 3 + number)
        group.cancel_scope.cancel()


async def test_wrong_guess_about_a_class_is_over_within_a_second() -> None:
    async with anyio.create_task_group() as group:
        llm = Scene(group, 4)
        for _ in range(3):
            await feeding(llm, path="/v1/chat")
        await llm.passes(1.1)
        stages = [await feeding(llm, path="/v1/chat") for _ in range(2)]
        assert llm.in_flight == 0
        for _ in range(5):
            await llm.passes(0.2)
            for stage in stages:
                stage.sends(chunk())
            await settled()
        assert llm.in_flight == 2
        await feeding(llm, path="/v1/chat")
        assert llm.in_flight == 3
        group.cancel_scope.cancel()


async def test_websocket_with_a_slot_has_it_only_while_either_side_sends() -> None:
    async with anyio.create_task_group() as group:
        sockets = Scene(group, 1, websockets="slot")
        stage = await sockets.comes({"type": "websocket.connect"}, scope=websocket_scope())
        stage.receives()
        stage.sends({"type": "websocket.accept"})
        stage.receives()
        await settled()
        assert (sockets.in_flight, sockets.paused) == (1, 0)
        await sockets.passes(1.1)
        assert (sockets.in_flight, sockets.paused) == (0, 1)
        stage.client.sends({"type": "websocket.receive", "text": "hello"})
        await settled()
        assert (sockets.in_flight, sockets.paused) == (1, 0)
        await sockets.passes(1.1)
        stage.sends({"type": "websocket.send", "text": "hello"})
        await settled()
        assert (sockets.in_flight, sockets.paused) == (1, 0)
        stage.ends()
        await stage.client.ended.wait()
        assert (sockets.in_flight, sockets.paused) == (0, 0)


async def test_app_may_pause_its_own_request() -> None:
    throttle = with_places(1)
    seen: list[tuple[int, int, int]] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        permit = permit_of(scope)
        assert permit is not None
        permit.pause()
        seen.append(taken(throttle))
        permit.resume()
        seen.append(taken(throttle))
        await send(head((b"content-length", b"0")))
        await send(chunk(b"", more=False))

    async with anyio.create_task_group() as group:
        scene = Scene(group)
        scene.middleware.app = app
        throttle = scene.throttle
        await request(scene.app)
    assert seen == [(0, 0, 1), (1, 0, 1)]


async def test_client_errors_are_a_work_class_of_their_own_but_not_those_of_the_load() -> None:
    async with anyio.create_task_group() as group:
        answers = Scene(group)
        for status in (200, 404, 408, 422, 429, 500):
            stage = await answers.comes(path=f"/{status}")
            stage.sends(head(status=status), chunk(more=False))
            stage.ends()
            await stage.client.ended.wait()
        await answers.passes(60.0)
        view = answers.throttle.snapshot().concurrency
    assert view is not None
    names = {one.name for one in view.work_classes}
    assert "client_error" in names
    assert outcomes(answers.throttle) == {"success": 5, "failure": 1}


async def test_many_pauses_are_logged_with_the_name_of_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with anyio.create_task_group() as group:
        feeds = Scene(group, 4, paused_max=4)
        for _ in range(3):
            await feeding(feeds)
        with caplog.at_level(logging.WARNING, "autoglm_throttle"):
            await feeds.passes(1.1)
            await feeds.passes(1.1)
        group.cancel_scope.cancel()
    lines = [record.getMessage() for record in caplog.records if "paused_max" in record.getMessage()]
    assert len(lines) == 1
    assert "3 requests" in lines[0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["pause", "resume", "settle"])), max_size=30),
)
def test_slots_in_use_are_the_running_requests_in_any_order(steps: list[tuple[int, str]]) -> None:
    throttle = with_places(4)
    permits = [throttle.try_admit(Demand()) for _ in range(4)]
    running = set(range(4))
    for which, step in steps:
        permit = permits[which]
        assert isinstance(permit, Permit)
        if step == "settle":
            permit.settle()
        else:
            getattr(permit, step)()
        if step == "resume" and not permit.settled:
            running.add(which)
        elif step != "resume":
            running.discard(which)
        view = throttle.snapshot().concurrency
        assert view is not None
        assert view.in_flight == len(running)
        assert view.paused == [isinstance(one, Permit) and one.is_paused for one in permits].count(True)
