"""Lost devices: the admitted rate follows the remaining capacity, not the lower mean."""

from typing import Any

import pytest

from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import ControlCause
from tests.gpu.throttled_service import NOMINAL_RPS, Service

LEFT_RPS = 0.75 * NOMINAL_RPS
HOLD_S = 30


def four(each_pct: float, **settings: Any) -> tuple[Service, FakeGpu]:
    clock = ManualClock()
    gpu = FakeGpu(4, clock=clock)
    gpu.utilization_pct = each_pct
    return Service(gpu, clock, **settings), gpu


def mean(counts: list[int]) -> float:
    return sum(counts) / len(counts)


@pytest.mark.parametrize("index", range(4))
def test_one_of_four_lost_leaves_three_quarters(index: int) -> None:
    service, gpu = four(60.0)
    before = service.overload(4)[1:]  # the first second also spends the burst
    assert mean(before) == pytest.approx(NOMINAL_RPS, abs=1.0)
    gpu.lose(index)
    after = service.overload(40)
    assert max(after) <= max(before)
    assert all(0.70 * NOMINAL_RPS < count < 0.80 * NOMINAL_RPS for count in after[1:])
    assert mean(after[1:]) == pytest.approx(LEFT_RPS, abs=1.0)
    gpu.recover()
    assert max(service.overload(3)) < 0.80 * NOMINAL_RPS, "until three samples say that it is back"
    assert mean(service.overload(4)) == pytest.approx(NOMINAL_RPS, abs=1.0)


def test_loss_of_hot_device_releases_no_band() -> None:
    """Without it the mean falls from 88 to 84 %, below the lowest edge."""
    service, gpu = four(84.0)
    gpu.set(2, utilization_pct=100.0)
    before = service.overload(8)[-3:]
    assert mean(before) == pytest.approx(0.7 * NOMINAL_RPS, abs=1.0)
    gpu.lose(2)
    held = service.overload(HOLD_S)
    assert max(held) <= max(before)
    assert mean(held[1:]) == pytest.approx(0.7 * LEFT_RPS, abs=1.0)
    after = service.overload(20)
    assert max(after) <= LEFT_RPS + 2.0
    assert mean(after[5:]) == pytest.approx(LEFT_RPS, abs=1.0)


def test_loss_of_one_hot_device_keeps_the_rest_admitted() -> None:
    service, gpu = four(40.0)
    gpu.set(0, utilization_pct=100.0)
    service.overload(5)
    assert service.throttle.control_state().factor == 1.0, "the fleet is not cut for one hot card"
    gpu.lose(0)
    assert mean(service.overload(40)[1:]) == pytest.approx(LEFT_RPS, abs=1.0)


def test_lost_device_at_zero_is_not_idle() -> None:
    """At 90 % each the table leaves 0.7; a device counted as 0 % would raise it."""
    service, gpu = four(90.0)
    service.overload(5)
    for lost in range(1, 4):
        gpu.lose(lost)
        (left,) = service.overload(2)[1:]
        assert left == pytest.approx(0.7 * NOMINAL_RPS * (4 - lost) / 4, abs=4.0)


def test_all_devices_lost_rejects_all_until_one_returns() -> None:
    service, gpu = four(60.0)
    service.overload(3)
    for index in range(4):
        gpu.lose(index)
    service.tick()
    service.rejected.clear()
    assert service.overload(60) == [0] * 60, "a loss is believed as long as the source says so"
    assert set(service.rejected) == {"gpu:lost"}
    snapshot = service.throttle.snapshot()
    assert (snapshot.ready, snapshot.control.cause, snapshot.control.factor) == (
        False,
        ControlCause.LOST,
        0.0,
    )
    gpu.recover()
    service.rejected.clear()
    assert service.overload(3) == [0] * 3
    assert set(service.rejected) == {"gpu:lost"}
    assert service.throttle.snapshot().ready
    assert service.detail() == ""


def test_reduced_rates_rise_slowly_after_total_loss() -> None:
    """No change until three new samples; then the earlier band until 30 s after the loss."""
    service, gpu = four(93.0)
    service.overload(5)
    assert service.throttle.control_state().tier == 0.4
    for index in range(4):
        gpu.lose(index)
    service.tick()
    gpu.recover()
    gpu.utilization_pct = 50.0
    factors = [service.tick().factor for _ in range(HOLD_S + 5)]
    assert factors[: HOLD_S - 1] == [0.0] * 2 + [0.4] * (HOLD_S - 3)
    assert factors[-1] == 1.0


def test_three_new_samples_are_needed_after_a_silence() -> None:
    service, gpu = four(93.0, gpu_unknown="last")
    service.overload(5)
    gpu.hang()
    service.tick(60)
    gpu.recover()
    gpu.utilization_pct = 50.0
    assert [service.tick().factor for _ in range(4)] == [0.4, 0.4, 1.0, 1.0]


def test_flapping_device_counts_as_lost() -> None:
    service, gpu = four(60.0)
    service.overload(4)
    gpu.lose(3)
    service.tick()
    for _ in range(20):
        gpu.recover()
        service.overload(1)
        assert service.throttle.control_state().factor == 0.75
        gpu.lose(3)
        service.overload(1)
        assert service.throttle.control_state().factor == 0.75


@pytest.mark.parametrize("policy", ["tiers", "adaptive"])
def test_retry_after_of_loss_is_exact(policy: str) -> None:
    service, gpu = four(60.0, policy=policy)
    service.tick(3)
    for index in range(4):
        gpu.lose(index)
    service.tick()
    gpu.recover()
    reported_s = service.clock() + service.wait_s()
    while service.clock() < reported_s:
        assert service.detail() == "gpu:lost"
        assert service.clock() + service.wait_s() == pytest.approx(reported_s)
        if (service.clock() + 0.25) % 1.0:
            service.clock.advance(0.25)
        else:
            service.tick(every_s=0.25)
    assert service.detail() == ""


def test_loss_with_silence_admits_nothing_more() -> None:
    """One device is lost, then the source dies: the capacity drifts back, never above the nominal rates."""
    service, gpu = four(60.0, gpu_unknown="open")
    service.overload(3)
    gpu.lose(0)
    service.overload(2)
    gpu.hang()
    factors = [service.tick().factor for _ in range(40)]
    assert factors[:3] == [0.75] * 3
    assert factors == sorted(factors)
    assert factors[-1] == 1.0
