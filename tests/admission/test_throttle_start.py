"""The start of the throttle, and its lifespan."""

from typing import Any

import pytest

from autoglm_throttle import (
    GpuSample,
    Priority,
    ProviderUnavailable,
    Settings,
    Throttle,
    ThrottleMiddleware,
)
from autoglm_throttle.asgi import middleware
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from autoglm_throttle.types.errors import NoSourceError
from tests.admission.demands import decided


class Lifespan:
    """A lifespan driven by the test: messages of the server and of the app."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.served = False

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.served = True
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def drive(self, throttle: Throttle) -> list[str]:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> dict[str, Any]:
            return next(messages)

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await ThrottleMiddleware(self.app, throttle=throttle)({"type": "lifespan"}, receive, send)
        return [message["type"].removeprefix("lifespan.") for message in self.sent]


class TestGpuRequired:
    """Whether a start without a first sample fails."""

    async def test_a_sample_in_time_lets_the_service_start(self) -> None:
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=FakeGpu())
        assert await lifespan.drive(throttle) == ["startup.complete", "shutdown.complete"]

    async def test_no_sample_ends_the_start_with_its_cause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.01)
        gpu = FakeGpu()
        gpu.fail_with(ProviderUnavailable("no driver"))
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=gpu)
        assert await lifespan.drive(throttle) == ["startup.failed"]
        message = lifespan.sent[0]["message"]
        assert "GPU_REQUIRED" in message
        assert message.endswith("fake: no driver")
        assert not lifespan.served
        assert throttle.control.monitor.has_sources
        assert not throttle.control.monitor.is_running

    async def test_engine_does_not_replace_missing_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.3)
        cards, engine = FakeGpu(), FakeGpu(devices=0, engines=1)
        engine.name = "engine"
        cards.fail_with(NoSourceError("no GPU found (nvml: no driver)"))
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=[cards, engine])
        assert await lifespan.drive(throttle) == ["startup.failed"]
        assert lifespan.sent[0]["message"].endswith(": fake: no GPU found (nvml: no driver)")

    async def test_lost_device_is_a_sample_without_load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(middleware, "FIRST_SAMPLE_TIMEOUT_S", 0.3)
        gpu = FakeGpu()
        gpu.lose()
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=gpu)
        assert await lifespan.drive(throttle) == ["startup.failed"]
        assert lifespan.sent[0]["message"].endswith(": no device reports its load")

    async def test_else_a_service_starts_without_any_sample(self) -> None:
        gpu = FakeGpu(blocks=True)
        gpu.hang()
        lifespan = Lifespan()
        throttle = Throttle(Settings(), gpu=gpu)
        try:
            assert await lifespan.drive(throttle) == ["startup.complete", "shutdown.complete"]
        finally:
            gpu.recover()


def test_from_env_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_RATE_LOW_RPS", "7")
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")
    assert Throttle.from_env().snapshot().rate_limit_rps[Priority.LOW] == 7.0
    assert Throttle().settings.rates.rate_low_rps == 100.0


def test_samples_may_be_handed_in() -> None:
    clock = ManualClock()
    throttle = Throttle(Settings(policy="tiers", gpu="none"), clock=clock)
    for _ in range(3):
        clock.advance(1.0)
        state = throttle.observe(
            [GpuSample(device="X", index=0, taken_at_s=clock(), source="elsewhere", utilization_pct=92.0)]
        )
    assert state.factor == 0.4
    assert throttle.tick().factor == 0.4
    assert throttle.snapshot().devices[0].source == "elsewhere"


def test_idle_users_leave_with_the_samples() -> None:
    throttle = throttle_for_tests(user_limit="1/second")
    for number in range(50):
        decided(throttle, Priority.HIGH, f"user {number}")
    assert throttle.snapshot().users == 50
    throttle.tick(3)
    assert throttle.snapshot().users == 0


def test_oddities_are_counted_by_name() -> None:
    throttle = throttle_for_tests()
    for name in ("odd", "odd", "even"):
        throttle.admission.record_oddity(name)
    throttle.admission.record_exempt()
    hints = throttle.snapshot().oddities
    assert (hints["odd"], hints["even"], hints["unknown_priority"]) == (2, 1, 0)
    assert throttle.snapshot().exempt == 1
