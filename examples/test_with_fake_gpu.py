"""How a service's own tests see a busy GPU without having one.

Run them:

    pip install ".[fastapi,prometheus]" pytest httpx
    pytest examples/test_with_fake_gpu.py
"""

import pytest
from fastapi.testclient import TestClient

from autoglm_throttle.testing import (
    ManualThrottle,
    assert_admitted,
    assert_limited,
    assert_shed,
    throttle_for_tests,
)
from examples.inference_service import create_app

PROMPT = {"prompt": "hello there"}


@pytest.fixture
def throttle() -> ManualThrottle:
    return throttle_for_tests(
        rate_low_rps=10,
        routes=[{"pattern": "/v1/generate", "priority": "high", "user_limit": "2/minute"}],
    )


@pytest.fixture
def client(throttle: ManualThrottle) -> TestClient:
    return TestClient(create_app(throttle))


def test_a_user_has_two_prompts_a_minute(throttle: ManualThrottle, client: TestClient) -> None:
    for _ in range(2):
        assert_admitted(client.post("/v1/generate", json=PROMPT))
    refused = client.post("/v1/generate", json=PROMPT)
    assert_limited(refused, reason="user")
    assert refused.headers["retry-after"] == "60"
    throttle.clock.advance(60)
    assert_admitted(client.post("/v1/generate", json=PROMPT))


def test_at_92_percent_the_rates_are_cut_to_40_percent(throttle: ManualThrottle, client: TestClient) -> None:
    throttle.gpu.utilization_pct = 92
    assert throttle.tick(3).factor == 0.4
    answers = [client.get("/v1/models") for _ in range(11)]  # low priority: a burst of 10
    for answer in answers[:10]:
        assert_admitted(answer)
    assert_shed(answers[10], reason="gpu")  # the rate would have been enough without the cut
    assert answers[10].headers["retry-after-ms"] == "250"  # one token at 4 requests/s


def test_a_full_gpu_refuses_all_but_health_and_metrics(throttle: ManualThrottle, client: TestClient) -> None:
    throttle.gpu.utilization_pct = 97
    throttle.tick(3)
    assert_shed(client.post("/v1/generate", json=PROMPT), reason="gpu")
    assert_admitted(client.get("/ready"))
    assert "autoglm_throttle_factor_ratio 0.0" in client.get("/metrics").text
    throttle.gpu.utilization_pct = 50
    throttle.tick()
    assert_admitted(client.post("/v1/generate", json=PROMPT))


def test_a_lost_gpu_makes_the_service_not_ready(throttle: ManualThrottle, client: TestClient) -> None:
    throttle.tick()
    throttle.gpu.lose()
    throttle.tick()
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False})
