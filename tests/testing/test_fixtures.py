"""The fixtures as a test of ours meets them."""

from typing import Any

import pytest

from autoglm_throttle import Demand, Priority, Reason, Rejection
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.testing.plugin import ThrottleApp


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def test_one_clock_and_one_gpu_in_a_test(
    fake_clock: ManualClock, fake_gpu: FakeGpu, throttle_app: ThrottleApp
) -> None:
    first, second = throttle_app(app), throttle_app(app, rate_low_rps=7)
    fake_gpu.utilization_pct = 92.0
    for wrapped in (first, second):
        assert wrapped.throttle.clock is fake_clock
        assert wrapped.throttle.tick(3).factor == 0.4
    assert second.throttle.settings.rates.rate_low_rps == 7.0
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await first({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 204


def test_no_throttle_admits_all_and_counts(no_throttle: ManualThrottle) -> None:
    rejecting_all = throttle_for_tests(user_limit="1/day")
    rejecting_all.gpu.utilization_pct = 99.0
    rejecting_all.tick(3)
    for throttle in (rejecting_all, no_throttle):
        for _ in range(4):
            permit = throttle.try_admit(Demand(Priority.LOW, cost=1e6))
            assert permit.admitted
            with permit:
                assert permit.decision.reason is Reason.OK
        snapshot = throttle.snapshot()
        assert snapshot.requests[Priority.LOW, "admitted", Reason.OK] == 4
        assert sum(snapshot.durations[Priority.LOW].counts) == 4
        assert snapshot.active[Priority.LOW] == 0


@pytest.mark.usefixtures("fake_gpu")
def test_without_it_the_limits_hold() -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    assert throttle.try_admit(Demand()).admitted
    assert isinstance(throttle.try_admit(Demand()), Rejection)
