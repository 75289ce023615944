"""No task outlives a queued request, and no ending of many requests leaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from autoglm_throttle import Permit, Priority, Reason
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.types import Demand
from tests.asgi.queued_clients import Client, Service, part, settled, taken, used, with_places
from tests.asgi.run_app import App, http_scope

pytestmark = pytest.mark.usefixtures("quiet_loop")


def that(ending: str) -> App:
    """An app that reads, or does not, or fails."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if ending == "fails":
            raise RuntimeError("app")
        if ending == "served":
            await receive()
        await PlainTextResponse("ok")(scope, receive, send)

    return app


@pytest.mark.parametrize("ending", ["served", "unread", "refused", "leaves", "given up", "fails"])
def test_no_task_outlives_its_request(ending: str) -> None:
    """A part is received in a task of its own, which must end with the request however that ends."""

    async def scenario() -> None:
        throttle = with_places(1)
        held = throttle.try_admit(Demand())
        assert isinstance(held, Permit)
        client = Client(ThrottleMiddleware(that(ending), throttle=throttle), http_scope())
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(client.run())
        await settled()
        assert len(asyncio.all_tasks() - before) == 2, "the request, and the part that it waits for"
        if ending == "leaves":
            client.leaves()
        elif ending == "given up":
            task.cancel()
        elif ending == "refused":
            throttle.clock.advance(60.0)
        elif ending == "served":
            client.sends(part(b"a"))
            await settled()
        held.settle()
        await settled()
        assert task.done()
        assert asyncio.all_tasks() == before
        assert taken(throttle) == (0, 0, 0)

    asyncio.run(scenario())


class Crowd:
    """Requests with different fates, at a service with few places."""

    def __init__(self, places: int) -> None:
        self.service = Service(with_places(places, user_limit="1000/minute"))
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Future[None]] = []

    def comes(self, *, whole: bool) -> None:
        self.clients.append(self.service.client(part(b"a", more=not whole)))
        self.tasks.append(asyncio.ensure_future(self.clients[-1].run()))

    def release(self, times: int) -> None:
        for _ in range(min(times, len(self.service.held))):
            self.service.release()

    def meets(self, fate: str) -> None:
        if fate == "leaves":
            self.clients[-1].leaves()
        elif fate == "given up":
            self.tasks[-1].cancel()

    async def goes_home(self) -> None:
        for client in self.clients:
            client.leaves()
        while not all(task.done() for task in self.tasks):
            self.release(99)
            await asyncio.sleep(0)


fates = st.sampled_from(["stays", "leaves", "given up"])


@given(
    places=st.integers(1, 3),
    rounds=st.lists(st.tuples(fates, st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=25),
)
def test_whatever_becomes_of_many_requests_nothing_leaks(
    places: int, rounds: list[tuple[str, int, int]]
) -> None:
    async def scenario() -> None:
        crowd = Crowd(places)
        throttle = crowd.service.throttle
        for fate, steps, releases in rounds:
            crowd.comes(whole=fate == "stays")
            await settled(steps)
            crowd.release(releases)
            crowd.meets(fate)
            in_flight, waiting, active = taken(throttle)
            assert active <= in_flight <= places
            assert waiting <= len(rounds)
        await crowd.goes_home()
        assert taken(throttle) == (0, 0, 0)
        admitted = throttle.snapshot().requests[Priority.MID, "admitted", Reason.OK]
        assert used(throttle) == admitted
        crowd.comes(whole=True)
        await settled()
        await crowd.goes_home()
        assert crowd.clients[-1].answer.header("ratelimit") == f'"user-60s";r={999 - admitted};t=60'

    asyncio.run(scenario())
