"""Thousands of waiting requests: the queue and its memory are bounded, and light users are served."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from tests.asgi.queued_clients import REQUEST, Client, Service, settled, taken, with_places
from tests.asgi.run_app import http_scope
from tests.hostile.attacks import Attack

pytestmark = [pytest.mark.slow, pytest.mark.untraced]

MANY = 10_000
QUEUE_MAX = 1024
"""The default."""

FEW = 3 * QUEUE_MAX

PER_REQUEST_BYTES = 12_288
"""Of a waiting request with its task, scope, wake-up and ticket; about 8 KiB have been seen."""

STEPS = 10
"""Of the event loop until all that can go on have done so; fewer than in short tests, for so many tasks."""

ONE, EACH = "one caller", "many callers"
PLENTY: dict[str, Any] = {
    "user_limit": "off",
    "rate_high_rps": 1_000_000,
    "rate_mid_rps": 1_000_000,
    "rate_low_rps": 1_000_000,
}
"""Rates and user limits reject nobody: the queue alone does."""


def address(kind: str, number: int) -> tuple[str, int]:
    """Return the peer of a hostile request."""
    return ("192.0.2.1", number) if kind == ONE else (f"10.0.{number >> 8}.{number & 255}", 1)


@contextmanager
def traced() -> Iterator[list[int]]:
    """Measure the bytes that are allocated and kept inside the block."""
    grown: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield grown
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def flood(service: Service, kind: str, tasks: Any, number: int) -> list[Client]:
    clients = [service.client(client=address(kind, n)) for n in range(number)]
    for client in clients:
        tasks.start_soon(client.run)
    return clients


@pytest.mark.parametrize("kind", [ONE, EACH])
async def test_ten_thousand_waiting_requests_have_bounded_memory(attack: Attack, kind: str) -> None:
    with attack(f"queue: 10,000 waiting requests of {kind}", times=MANY):
        service = Service(with_places(1, queue_max=MANY, **PLENTY))
        async with anyio.create_task_group() as tasks:
            with traced() as grown:
                flood(service, kind, tasks, MANY)
                await settled(STEPS)
            assert taken(service.throttle) == (1, MANY - 1, 1)
            tasks.cancel_scope.cancel()
        assert grown[0] / MANY < PER_REQUEST_BYTES
        assert taken(service.throttle) == (0, 0, 0)


@pytest.mark.parametrize("kind", [ONE, EACH])
async def test_default_queue_rejects_the_rest_at_once(attack: Attack, kind: str) -> None:
    with attack(f"queue: more requests than QUEUE_MAX, of {kind}", times=FEW):
        service = Service(with_places(1, **PLENTY))
        async with anyio.create_task_group() as tasks:
            clients = flood(service, kind, tasks, FEW)
            await settled(STEPS)
            assert taken(service.throttle)[:2] == (1, QUEUE_MAX)
            statuses = [client.answer.status for client in clients if client.ended.is_set()]
            assert statuses == [503] * (FEW - 1 - QUEUE_MAX)
            tasks.cancel_scope.cancel()
        assert taken(service.throttle) == (0, 0, 0)


async def test_light_users_are_served_beside_ten_thousand_requests(attack: Attack) -> None:
    with attack("queue: light users behind 10,000 requests of one caller", times=MANY):
        service = Service(with_places(1, queue_max=2 * MANY, **PLENTY))
        async with anyio.create_task_group() as tasks:
            flood(service, ONE, tasks, MANY)
            await settled(STEPS)
            light = [service.client(client=(f"198.51.100.{n}", 1)) for n in range(10)]
            for client in light:
                tasks.start_soon(client.run)
            await settled(STEPS)
            for _ in range(2 * len(light) + 2):  # at most one request of the heavy caller between two
                service.release()
                await settled(STEPS)
            assert [client.answer.status for client in light] == [200] * len(light)
            tasks.cancel_scope.cancel()


async def test_light_user_enters_a_queue_that_one_caller_has_filled(attack: Attack) -> None:
    with attack("queue: one caller fills QUEUE_MAX", times=FEW):
        service = Service(with_places(1, **PLENTY))
        async with anyio.create_task_group() as tasks:
            flood(service, ONE, tasks, FEW)
            await settled(STEPS)
            light = service.client(client=("198.51.100.1", 1))
            tasks.start_soon(light.run)
            await settled(STEPS)
            for _ in range(3):
                service.release()
                await settled(STEPS)
            assert light.answer.status == 200
            tasks.cancel_scope.cancel()
        assert taken(service.throttle) == (0, 0, 0)


async def test_deadlines_of_one_caller_hurt_no_other(attack: Attack) -> None:
    with attack("queue: requests with a deadline of a millisecond", times=FEW):
        service = Service(with_places(1, deadline_header="x-deadline", **PLENTY))
        async with anyio.create_task_group() as tasks:
            before = service.throttle.snapshot().concurrency
            fields = {"x-deadline": "1ms"}
            for n in range(FEW):
                scope = http_scope(headers=fields, client=address(ONE, n))
                tasks.start_soon(Client(service.app, scope, REQUEST).run)
            await settled(STEPS)
            light = service.client(client=("198.51.100.1", 1))
            tasks.start_soon(light.run)
            await settled(STEPS)
            service.throttle.clock.advance(0.002)  # the deadlines of all that wait are over
            for _ in range(2):
                service.release()
                await settled(STEPS)
            assert light.answer.status == 200
            after = service.throttle.snapshot().concurrency
            assert before is not None
            assert after is not None
            assert (after.slo_s, after.waiting) == (before.slo_s, (0, 0, 0))
            tasks.cancel_scope.cancel()


async def test_waiting_requests_that_leave_free_the_queue(attack: Attack) -> None:
    with attack("queue: 10,000 requests that leave while they wait", times=MANY):
        service = Service(with_places(1, queue_max=MANY, **PLENTY))
        async with anyio.create_task_group() as tasks:
            clients = flood(service, EACH, tasks, MANY)
            await settled(STEPS)
            for client in clients[1:]:
                client.leaves()
            await settled(STEPS)
            assert taken(service.throttle) == (1, 0, 1)
            tasks.cancel_scope.cancel()


async def test_body_parts_of_waiting_requests_are_bounded(attack: Attack) -> None:
    parts, length = 2_000, {"content-length": "9999"}
    with attack("queue: bodies of one-byte parts while requests wait", times=100):
        service = Service(with_places(1, **PLENTY))
        message = {"type": "http.request", "body": b"x", "more_body": True}
        async with anyio.create_task_group() as tasks:
            with traced() as grown:
                for n in range(100):
                    scope = http_scope(method="POST", headers=length, client=address(EACH, n))
                    client = Client(service.app, scope, *([message] * parts))
                    tasks.start_soon(client.run)
                await settled(parts + STEPS)
            assert grown[0] / 100 < 2 * 65_536
            tasks.cancel_scope.cancel()
