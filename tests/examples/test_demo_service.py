"""The application of the demonstration's service, driven in this process."""

from __future__ import annotations

import httpx

from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import ManualClock, throttle_for_tests
from autoglm_throttle.types import Policy
from examples.demo.scenario import PAGE_PATH, STATE_PATH, environment
from examples.demo.service import ITEMS, Downstream, build, with_page
from tests.traffic.asgi_driver import ask


async def test_the_state_is_shown_and_never_charged() -> None:
    app = build(environment(Policy.FIXED), None, 60.0)
    for _ in range(100):
        answer = await ask(app, "GET", STATE_PATH)
        assert answer.status == 200
    assert answer.json["factor"] == 1.0
    assert answer.json["rate_rps"] == {"high": 1000.0, "mid": 500.0, "low": 100.0}
    snapshot = app.throttle.snapshot()
    assert snapshot.exempt == 100
    assert sum(snapshot.requests.values()) == 0


async def test_rejected_requests_carry_a_reason() -> None:
    app = build(environment(Policy.FIXED), 1000.0, 60.0)
    answers = [await ask(app, "POST", "/v1/predict", b'{"tokens":2}') for _ in range(70)]
    assert {answer.status for answer in answers} == {200, 429}
    assert answers[-1].json["error"]["code"] == "user:user-1s"
    app.throttle.stop()


async def test_failing_downstream_opens_the_breaker_until_a_probe() -> None:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock, breaker_open_s=10)
    downstream = Downstream(throttle, 60.0, clock)
    answers = [await downstream.request() for _ in range(ITEMS)]
    assert downstream.state()["state"] == "closed"
    clock.advance(3.0)
    assert [await downstream.request() for _ in range(ITEMS)] == answers
    state = downstream.state()
    assert (state["failed"], state["state"], state["openings"]) == (5, "open", 1)
    assert state["fallbacks"] == {"outage": ITEMS}
    clock.advance(10.0)
    assert await downstream.request() == answers[0]
    state = downstream.state()
    assert (state["failed"], state["state"], state["calls"]) == (5, "closed", ITEMS + 6)


async def test_under_load_the_downstream_is_not_called() -> None:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock)
    downstream = Downstream(throttle, 60.0, clock)
    throttle.gpu.utilization_pct = 84.0
    for _ in range(4):
        clock.advance(1.0)
        throttle.tick()
    assert await downstream.request() == ()
    state = downstream.state()
    assert (state["level"], state["fallbacks"], state["calls"]) == ("shed", {"load": 1}, 0)


async def test_the_live_page_stands_in_front_of_the_throttle() -> None:
    app = build(environment(Policy.FIXED), None, 60.0)
    transport = httpx.ASGITransport(with_page(app), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as reader:
        page = await reader.get(f"{PAGE_PATH}/")
        document = (await reader.get(f"{PAGE_PATH}/data.json")).json()
        state = await reader.get(STATE_PATH)
    assert document["sentence"] in page.text
    assert state.status_code == 200
    assert app.throttle.snapshot().exempt == 1
    history_timer(app.throttle).stop()
    app.throttle.stop()
