"""A request that waits for its turn is served in its turn, with its body whole."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from autoglm_throttle import Permit
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.receive import BUFFER_BYTES
from autoglm_throttle.asgi.scope import verdicts_of
from autoglm_throttle.types import Demand
from tests.asgi.queued_clients import Client, Service, part, settled, taken, used, with_places
from tests.asgi.run_app import http_scope

pytestmark = pytest.mark.usefixtures("quiet_loop")


def test_queued_request_is_served_when_slot_frees(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        first, second = service.client(), service.client()
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await settled()
            group.start_soon(second.run)
            await settled()
            assert taken(service.throttle) == (1, 1, 1)
            assert len(service.inside) == 1
            service.release()
            await settled()
            assert first.answer.status == 200
            assert taken(service.throttle) == (1, 0, 1)
            verdict = verdicts_of(second.scope)[service.throttle]
            assert isinstance(verdict, Permit)
            service.release()
        assert second.answer.status == 200
        assert second.answer.header("ratelimit") == '"user-60s";r=98;t=60'
        assert taken(service.throttle) == (0, 0, 0)
        assert used(service.throttle) == 2

    anyio.run(scenario, backend=backend)


def test_the_more_important_one_goes_first(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(3, min_share=0.0, priority_header_trust="any"))
        async with anyio.create_task_group() as group:
            for name in ("mid", "mid", "mid", "low", "mid", "high"):
                group.start_soon(service.client(priority=name).run)
                await settled()
            assert taken(service.throttle) == (3, 3, 3)
            served = []
            for _ in range(3):
                service.release()
                await settled()
                served.append(dict(service.inside[-1]["headers"])[b"x-priority"])
            assert served == [b"high", b"mid", b"low"]
            for _ in range(3):
                service.release()
        assert taken(service.throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


@pytest.mark.parametrize("size", [0, 10, BUFFER_BYTES])
def test_a_body_sent_before_and_after_the_turn_is_whole(backend: str, size: int) -> None:
    async def scenario() -> None:
        service = Service(with_places(1))
        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            uploads = service.client(part(b"a" * size), part(b"b" * size))
            group.start_soon(uploads.run)
            await settled()
            assert taken(service.throttle) == (1, 1, 1)
            service.release()
            uploads.sends(part(b"c" * size))
            await settled()
            uploads.sends(part(b"d", more=False))
            service.release()
        assert uploads.answer.body == b"a" * size + b"b" * size + b"c" * size + b"d"

    anyio.run(scenario, backend=backend)


def test_an_app_that_never_reads_leaves_nothing_behind(backend: str) -> None:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("unread")

    async def scenario() -> None:
        throttle = with_places(1)
        held = throttle.try_admit(Demand())
        assert isinstance(held, Permit)
        app = ThrottleMiddleware(
            Starlette(routes=[Route("/", endpoint, methods=["POST"])]), throttle=throttle
        )
        client = Client(app, http_scope(method="POST"), part(b"a"))
        async with anyio.create_task_group() as group:
            group.start_soon(client.run)
            await settled()
            held.settle()
        assert (client.answer.body, client.error) == (b"unread", None)
        assert taken(throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


def test_dry_run_neither_queues_nor_rejects(backend: str) -> None:
    async def scenario() -> None:
        service = Service(with_places(1, dry_run=True, user_limit="2/minute"))
        clients = [service.client() for _ in range(8)]
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(client.run)
            await settled()
            assert len(service.inside) == 8
            for _ in clients:
                service.release()
        assert [client.answer.status for client in clients] == [200] * 8
        snapshot = service.throttle.snapshot()
        assert sum(snapshot.would_reject.values()) == 6
        assert not sum(n for (_, name, _), n in snapshot.requests.items() if name != "admitted")
        assert taken(service.throttle) == (0, 0, 0)

    anyio.run(scenario, backend=backend)


def test_a_user_without_units_does_not_wait() -> None:
    throttle = with_places(1, user_limit="1/minute")

    async def scenario() -> None:
        service = Service(throttle)
        async with anyio.create_task_group() as group:
            group.start_soon(service.client().run)
            await settled()
            refused = service.client()
            await refused.run()
            assert refused.answer.status == 429
            assert taken(throttle) == (1, 0, 1)
            service.release()

    asyncio.run(scenario())
