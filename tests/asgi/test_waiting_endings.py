"""Every end of a wait returns the slot, tokens and units of the request."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from autoglm_throttle import Outcome, Permit, Priority, Reason, Rejection, Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.scope import verdicts_of
from autoglm_throttle.types import Demand
from tests.admission.limited_throttle import permit_for
from tests.asgi.queued_clients import Client, Service, left_in_line, part, settled, taken, used, with_places
from tests.asgi.run_app import http_scope, never

pytestmark = pytest.mark.usefixtures("quiet_loop")


@pytest.mark.parametrize("sent", ["nothing", "half", "whole"])
def test_client_leaving_queue_is_charged_nothing(backend: str, sent: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            leaver = service.client(part(b"half", more=sent == "half"))
            if sent == "nothing":
                leaver = Client(service.app)
            group.start_soon(leaver.run)
            await settled()
            assert (taken(service.throttle), used(service.throttle)) == ((1, 1, 1), 2)
            leaver.leaves()
            await settled()
            assert leaver.ended.is_set()
            assert (taken(service.throttle), used(service.throttle)) == ((1, 0, 1), 1)
            assert left_in_line(service.throttle) == 1
            assert (leaver.answer.messages, leaver.error) == ([], None)
            stays = service.client()
            group.start_soon(stays.run)
            service.release()
            await settled()
            service.release()
        assert stays.answer.header("ratelimit") == '"user-60s";r=98;t=60', "two were charged, not three"
        assert service.calls == 2
        assert taken(service.throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("leaves_first", [True, False])
def test_client_leaving_when_called_frees_its_slot(backend: str, leaves_first: bool) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        ended = []
        for between in range(6):
            async with anyio.create_task_group() as group:
                group.start_soon(service.client().run)
                await settled()
                leaver = service.client()
                group.start_soon(leaver.run)
                await settled()
                steps = [leaver.leaves, service.release]
                for step in steps if leaves_first else reversed(steps):
                    step()
                    for _ in range(between):
                        await anyio.lowlevel.checkpoint()
                await settled()
                if service.inside:
                    service.release()
            ended.append(leaver.answer.status)
            assert taken(service.throttle) == (0, 0, 0)
        assert set(ended) <= {0, 200}
        assert left_in_line(service.throttle) == ended.count(0)
        assert used(service.throttle) == 6 + ended.count(200)

    anyio.run(scenario, backend=backend)


def test_queue_timeout_rejects_and_charges_nothing(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1, slo_s=4.0, wait_budget=0.25))
        throttle = service.throttle
        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            waits = service.client(part(b"an upload that goes on"))
            group.start_soon(waits.run)
            await settled()
            throttle.clock.advance(1.0)
            service.release()
            await settled()
            assert taken(throttle) == (0, 0, 0)
        assert waits.answer.status == 503
        assert waits.answer.header("content-type") == "application/problem+json"
        assert b"queue:timeout" in waits.answer.body
        assert waits.answer.header("retry-after")
        assert isinstance(verdicts_of(waits.scope)[throttle], Rejection)
        assert throttle.snapshot().requests[Priority.MID, "shed", Reason.QUEUE] == 1
        assert used(throttle) == 0, "one second has filled the bucket"
        assert service.calls == 1

    anyio.run(scenario, backend=backend)


def test_the_waiter_itself_notices_that_its_time_is_over(backend: str) -> None:
    """With a real clock and no other request."""

    async def scenario() -> None:
        settings = Settings(
            gpu="none",
            policy="concurrency",
            slo_s=0.2,
            inflight_start=1,
            inflight_floor=1,
            inflight_max=1,
        )
        throttle = Throttle(settings)
        held = throttle.try_admit(Demand())
        assert isinstance(held, Permit)
        client = Client(ThrottleMiddleware(never, throttle=throttle))
        with anyio.fail_after(60.0):
            await client.run()
        assert client.answer.status == 503
        held.settle()
        gate = throttle.snapshot().concurrency
        assert gate is not None
        assert sum(gate.waiting) == 0

    anyio.run(scenario, backend=backend)


def test_a_server_that_gives_up_a_waiting_request(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            async with anyio.create_task_group() as given_up:
                given_up.start_soon(service.client(part(b"a")).run)
                await settled()
                assert taken(service.throttle) == (1, 1, 1)
                given_up.cancel_scope.cancel()
            assert taken(service.throttle) == (1, 0, 1)
            assert used(service.throttle) == 1
            service.release()
        assert taken(service.throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


def test_slot_of_ticket_cancelled_when_called_goes_to_next(backend: str) -> None:
    async def scenario() -> None:
        throttle = with_places(2)
        service = Service(throttle)
        held = [throttle.try_admit(Demand()) for _ in range(2)]
        waits = [service.client() for _ in range(2)]
        scope = anyio.CancelScope()

        async def given_up() -> None:
            with scope:
                await waits[0].run()

        async with anyio.create_task_group() as group:
            group.start_soon(given_up)
            await settled()
            group.start_soon(waits[1].run)
            await settled()
            assert taken(throttle) == (2, 2, 2)
            assert isinstance(held[0], Permit)
            held[0].settle()
            scope.cancel()
            await settled()
            assert taken(throttle) == (2, 0, 2)
            assert service.inside == [waits[1].scope]
            service.release()
        assert taken(throttle) == (1, 0, 1)
        assert left_in_line(throttle) == 1

    anyio.run(scenario, backend=backend)


def test_server_shutdown_with_queued_requests() -> None:
    """As ``asyncio.run`` does at the end: every task is cancelled, in no order."""
    service = Service(with_places(2))

    async def scenario() -> None:
        tasks.extend(asyncio.ensure_future(service.client(part(b"a")).run()) for _ in range(4))
        await settled()
        assert taken(service.throttle) == (2, 2, 2)

    tasks: list[asyncio.Future[None]] = []
    asyncio.run(scenario())
    assert all(task.cancelled() for task in tasks)
    assert taken(service.throttle) == (0, 0, 0)
    assert used(service.throttle) == 2, "what waited is charged nothing, what ran is"


def test_receive_failure_while_queued(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        breaks = anyio.Event()

        async def receive() -> Any:
            await breaks.wait()
            raise OSError("the wire is cut")

        async def run() -> None:
            with pytest.raises(OSError, match="cut"):
                await service.app(http_scope(), receive, None)

        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            group.start_soon(run)
            await settled()
            breaks.set()
            await settled()
            assert taken(service.throttle) == (1, 0, 1)
            service.release()
        assert used(service.throttle) == 1

    anyio.run(scenario, backend=backend)


class Chunks:
    """Endless; not a generator, which trio complains about where it is cancelled between two chunks."""

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return b"data"


def test_queued_stream_still_detects_disconnect(backend: str) -> None:
    async def endpoint(request: Request) -> Response:
        return StreamingResponse(Chunks())

    async def scenario() -> None:
        throttle = with_places(1)
        held = throttle.try_admit(Demand())
        assert isinstance(held, Permit)
        app = ThrottleMiddleware(Starlette(routes=[Route("/", endpoint)]), throttle=throttle)
        client = Client(app, http_scope(), part(b"", more=False))
        async with anyio.create_task_group() as group:
            group.start_soon(client.run)
            await settled()
            held.settle()
            while len(client.answer.messages) < 5:
                await anyio.lowlevel.checkpoint()
            assert taken(throttle) == (1, 0, 1), "a stream holds its slot"
            client.leaves()
            with anyio.fail_after(60.0):
                await client.ended.wait()
        assert client.error is None
        assert taken(throttle) == (0, 0, 0)
        assert throttle.snapshot().outcomes[Priority.MID, Outcome.NEUTRAL] == 1

    anyio.run(scenario, backend=backend)


def test_an_app_that_fails_after_the_wait_gives_its_slot_back(backend: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("app")

    async def scenario() -> None:
        throttle = with_places(1)
        held = throttle.try_admit(Demand())
        assert isinstance(held, Permit)
        client = Client(ThrottleMiddleware(app, throttle=throttle))
        async with anyio.create_task_group() as group:
            group.start_soon(client.run)
            await settled()
            held.settle()
        assert str(client.error) == "app"
        assert taken(throttle) == (0, 0, 0)
        assert throttle.snapshot().outcomes[Priority.MID, Outcome.FAILURE] == 1

    anyio.run(scenario, backend=backend)


def test_client_queued_at_two_throttles_leaves_both(backend: str) -> None:
    """The outer throttle's slot is held while the inner one lets it wait, each with an inbox of its own."""

    async def scenario() -> None:
        inner, outer = with_places(1), with_places(1)
        service = Service(inner)
        app = ThrottleMiddleware(service.app, throttle=outer)
        held = [permit_for(throttle, Demand()) for throttle in (inner, outer)]
        leaver = Client(app, http_scope(), part(b"a"))
        stays = Client(app, http_scope(), part(b"b", more=False))
        async with anyio.create_task_group() as group:
            group.start_soon(leaver.run)
            await settled()
            held[1].settle()
            await settled()
            assert (taken(outer), taken(inner)) == ((1, 0, 1), (1, 1, 1))
            leaver.leaves()
            await settled()
            assert (taken(outer), taken(inner)) == ((0, 0, 0), (1, 0, 1))
            group.start_soon(stays.run)
            held[0].settle()
            await settled()
            service.release()
        assert stays.answer.body == b"b"
        assert taken(outer) == taken(inner) == (0, 0, 0)

    anyio.run(scenario, backend=backend)
