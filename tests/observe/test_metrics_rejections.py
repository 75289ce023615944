"""The metric of rejections by route and limit."""

from __future__ import annotations

import httpx
import pytest

from autoglm_throttle import Demand, Priority, Rejection, RoutePolicy, ThrottleMiddleware
from autoglm_throttle.admission.counters import MOST_REJECTING
from autoglm_throttle.asgi.scope import Receive, Scope, Send
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from tests.observe.scraping import scraped


def rejections(throttle: ManualThrottle) -> dict[tuple[str, str], float]:
    samples = scraped(throttle)[f"{PREFIX}rejections"].samples
    return {(sample.labels["route"], sample.labels["limit"]): sample.value for sample in samples}


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


async def test_rejections_have_their_route_and_their_limit() -> None:
    routes = [RoutePolicy("/items/{item}", user_limit="2/minute"), RoutePolicy("/low", priority="low")]
    throttle = throttle_for_tests(routes=routes, user_limit="100/minute;3/second", rate_low_rps=1)
    transport = httpx.ASGITransport(ThrottleMiddleware(answer, throttle=throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path in ("/items/1", "/items/2", "/items/3", "/items/4", "/low", "/low"):
            await client.get(path)
            throttle.clock.advance(0.01)
        throttle.clock.advance(10.0)
        for _ in range(5):
            await client.get("/other")
    assert rejections(throttle) == {
        ("/items/{item}", "user-60s"): 2.0,
        ("/low", "low"): 1.0,
        ("undeclared", "user-1s"): 2.0,
    }


def test_names_of_undeclared_routes_are_no_labels_and_bounded() -> None:
    throttle = throttle_for_tests(rate_mid_rps=0.001)
    throttle.try_admit(Demand())
    for number in range(MOST_REJECTING + 100):
        assert isinstance(throttle.try_admit(Demand(route=f"route {number}")), Rejection)
    assert rejections(throttle) == {("undeclared", "mid"): MOST_REJECTING + 100}
    counted = throttle.snapshot().rejections
    assert len(counted) == MOST_REJECTING
    assert counted[None, "mid"] == 101


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_dry_run_rejects_nothing(*, dry_run: bool) -> None:
    throttle = throttle_for_tests(rate_low_rps=1, dry_run=dry_run)
    for _ in range(3):
        throttle.try_admit(Demand(Priority.LOW))
    assert rejections(throttle) == ({} if dry_run else {("undeclared", "low"): 2.0})
