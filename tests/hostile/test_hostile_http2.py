"""Bodies over HTTP/2, where no field announces them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from autoglm_throttle.asgi import ThrottleMiddleware
from tests.asgi.queued_clients import Client, part, settled, taken, with_places
from tests.asgi.run_app import http_scope
from tests.hostile.attacks import Attack


async def reads_all(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body of any method, as gateways do."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


async def held_slots(method: str, headers: dict[str, str]) -> int:
    """Begin a body that never ends, and return the slots that it holds long afterwards."""
    throttle = with_places(1)
    app = ThrottleMiddleware(reads_all, throttle=throttle)
    scope = http_scope(method=method, http_version="2", headers=headers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Client(app, scope, part(b"x")).run)
        await settled()
        throttle.clock.advance(5.0)
        app.slot_watch.scan(throttle.clock())
        held, _, _ = taken(throttle)
        tasks.cancel_scope.cancel()
    return held


@pytest.mark.parametrize(
    ("method", "headers"), [("POST", {}), ("PURGE", {}), ("POST", {"content-length": "9"})], ids=str
)
async def test_body_over_http_2_holds_no_slot(attack: Attack, method: str, headers: dict[str, str]) -> None:
    with attack("clients: a body over HTTP/2 that never ends"):
        assert await held_slots(method, headers) == 0


async def test_announced_body_of_a_get_over_http_2_holds_no_slot(attack: Attack) -> None:
    with attack("clients: an announced body of a GET over HTTP/2"):
        assert await held_slots("GET", {"content-length": "9"}) == 0


async def test_unannounced_body_of_a_get_over_http_2_holds_its_slot(attack: Attack) -> None:
    with attack(
        "clients: an unannounced body of a GET over HTTP/2",
        degraded="to await it would cost every GET; it holds its slot in an endpoint that reads such bodies",
    ):
        assert await held_slots("GET", {}) == 1
