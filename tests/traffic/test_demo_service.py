"""The application of the demonstration's service, driven in this process."""

from __future__ import annotations

from autoglm_throttle.model import Policy
from autoglm_throttle.traffic.demo.scenario import STATE_PATH, environment
from autoglm_throttle.traffic.demo.server import build
from tests.traffic.asgi_driver import ask


async def test_the_state_is_shown_and_never_charged() -> None:
    app = build(environment(Policy.FIXED), None)
    for _ in range(100):
        answer = await ask(app, "GET", STATE_PATH)
        assert answer.status == 200
    assert answer.json["factor"] == 1.0
    assert answer.json["rate_rps"] == {"high": 1000.0, "mid": 500.0, "low": 100.0}
    snapshot = app.throttle.snapshot()
    assert snapshot.exempt == 100
    assert sum(snapshot.requests.values()) == 0


async def test_requests_are_limited_and_told_why() -> None:
    app = build(environment(Policy.FIXED), 1000.0)
    answers = [await ask(app, "POST", "/v1/predict", b'{"tokens":2}') for _ in range(70)]
    assert {answer.status for answer in answers} == {200, 429}
    assert answers[-1].json["reason"] == "user:user-1s"
    app.throttle.stop()
