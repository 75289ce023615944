"""The numbers to scale by: the ratio of wanted replicas, and the flag that forbids to remove one."""

from __future__ import annotations

from typing import Literal

import pytest

from autoglm_throttle import Demand, Priority
from autoglm_throttle.testing import throttle_for_tests
from tests.observe.scraping import value


def test_ratio_is_the_demand_without_other_terms() -> None:
    throttle = throttle_for_tests(policy="concurrency", inflight_start=4, inflight_max=4, queue_max=50)
    assert value(throttle, "desired_replicas_ratio") == 0.0
    for _ in range(8):
        throttle.try_admit(Demand(Priority.MID))
    assert value(throttle, "desired_replicas_ratio") == 0.0, "a moment of load is no reason"
    throttle.clock.advance(600.0)
    ratio, pressure = (value(throttle, "desired_replicas_ratio"), throttle.snapshot().pressure["demand"])
    assert ratio == pytest.approx(pressure, abs=0.01)


def test_ratio_is_the_fullest_of_the_terms() -> None:
    throttle = throttle_for_tests(policy="adaptive", gpu_memory_target=0.5)
    throttle.gpu.memory_used_bytes, throttle.gpu.memory_total_bytes = 10, 100
    throttle.tick()
    throttle.gpu.memory_used_bytes = 80
    for _ in range(600):
        throttle.tick()
    assert value(throttle, "desired_replicas_ratio") == pytest.approx(1.6, abs=0.01)


@pytest.mark.parametrize("policy", ["fixed", "tiers"])
def test_service_without_concurrency_limit_has_no_ratio_and_holds(policy: Literal["fixed", "tiers"]) -> None:
    throttle = throttle_for_tests(policy=policy)
    throttle.gpu.memory_used_bytes, throttle.gpu.memory_total_bytes = 10, 100
    throttle.tick(3)  # a little memory in use is no reason to remove a replica
    assert value(throttle, "desired_replicas_ratio") is None
    assert value(throttle, "scale_hold") == 1.0


def test_healthy_devices_do_not_hold() -> None:
    throttle = throttle_for_tests(policy="adaptive")
    throttle.tick()
    assert value(throttle, "scale_hold") == 0.0


def test_old_telemetry_holds() -> None:
    throttle = throttle_for_tests(policy="adaptive")
    throttle.tick()
    throttle.clock.advance(30.0)
    assert throttle.control_state().telemetry.value in {"stale", "blind"}
    assert value(throttle, "scale_hold") == 1.0


def test_lost_device_holds() -> None:
    throttle = throttle_for_tests(policy="adaptive")
    throttle.tick()
    throttle.gpu.lose()
    throttle.tick(3)
    assert value(throttle, "scale_hold") == 1.0
