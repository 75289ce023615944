"""Lost devices: the admitted rate follows the remaining capacity, not the lower mean."""

from typing import Any

import pytest

from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import ControlCause
from tests.gpu.station import NOMINAL_RPS, Station

LEFT_RPS = 0.75 * NOMINAL_RPS
HOLD_S = 30


def four(each_pct: float, **settings: Any) -> tuple[Station, FakeGpu]:
    clock = ManualClock()
    gpu = FakeGpu(4, clock=clock)
    gpu.utilization_pct = each_pct
    return Station(gpu, clock, **settings), gpu


def mean(counts: list[int]) -> float:
    return sum(counts) / len(counts)


@pytest.mark.parametrize("index", range(4))
def test_one_of_four_lost_leaves_three_quarters(index: int) -> None:
    station, gpu = four(60.0)
    before = station.crowd(4)[1:]  # the first second also spends the burst
    assert mean(before) == pytest.approx(NOMINAL_RPS, abs=1.0)
    gpu.lose(index)
    after = station.crowd(40)
    assert max(after) <= max(before)
    assert all(0.70 * NOMINAL_RPS < count < 0.80 * NOMINAL_RPS for count in after[1:])
    assert mean(after[1:]) == pytest.approx(LEFT_RPS, abs=1.0)
    gpu.recover()
    assert max(station.crowd(3)) < 0.80 * NOMINAL_RPS, "until three samples say that it is back"
    assert mean(station.crowd(4)) == pytest.approx(NOMINAL_RPS, abs=1.0)


def test_loss_of_hot_device_releases_no_band() -> None:
    """Without it the mean falls from 88 to 84 %, below the lowest edge."""
    station, gpu = four(84.0)
    gpu.set(2, utilization_pct=100.0)
    before = station.crowd(8)[-3:]
    assert mean(before) == pytest.approx(0.7 * NOMINAL_RPS, abs=1.0)
    gpu.lose(2)
    held = station.crowd(HOLD_S)
    assert max(held) <= max(before)
    assert mean(held[1:]) == pytest.approx(0.7 * LEFT_RPS, abs=1.0)
    after = station.crowd(20)
    assert max(after) <= LEFT_RPS + 2.0
    assert mean(after[5:]) == pytest.approx(LEFT_RPS, abs=1.0)


def test_loss_of_one_hot_device_keeps_the_rest_admitted() -> None:
    station, gpu = four(40.0)
    gpu.set(0, utilization_pct=100.0)
    station.crowd(5)
    assert station.throttle.control_state().factor == 1.0, "the fleet is not cut for one hot card"
    gpu.lose(0)
    assert mean(station.crowd(40)[1:]) == pytest.approx(LEFT_RPS, abs=1.0)


def test_lost_device_at_zero_is_not_idle() -> None:
    """At 90 % each the table leaves 0.7; a device counted as 0 % would raise it."""
    station, gpu = four(90.0)
    station.crowd(5)
    for lost in range(1, 4):
        gpu.lose(lost)
        (left,) = station.crowd(2)[1:]
        assert left == pytest.approx(0.7 * NOMINAL_RPS * (4 - lost) / 4, abs=4.0)


def test_all_devices_lost_rejects_all_until_one_returns() -> None:
    station, gpu = four(60.0)
    station.crowd(3)
    for index in range(4):
        gpu.lose(index)
    station.tick()
    station.refused.clear()
    assert station.crowd(60) == [0] * 60, "a loss is believed as long as the source says so"
    assert set(station.refused) == {"gpu:lost"}
    snapshot = station.throttle.snapshot()
    assert (snapshot.ready, snapshot.control.cause, snapshot.control.factor) == (
        False,
        ControlCause.LOST,
        0.0,
    )
    gpu.recover()
    station.refused.clear()
    assert station.crowd(3) == [0] * 3
    assert set(station.refused) == {"gpu:lost"}
    assert station.throttle.snapshot().ready
    assert station.detail() == ""


def test_reduced_rates_rise_slowly_after_total_loss() -> None:
    """Nothing until three new samples are there; then the band of before until the loss is 30 s ago."""
    station, gpu = four(93.0)
    station.crowd(5)
    assert station.throttle.control_state().tier == 0.4
    for index in range(4):
        gpu.lose(index)
    station.tick()
    gpu.recover()
    gpu.utilization_pct = 50.0
    factors = [station.tick().factor for _ in range(HOLD_S + 5)]
    assert factors[: HOLD_S - 1] == [0.0] * 2 + [0.4] * (HOLD_S - 3)
    assert factors[-1] == 1.0


def test_three_new_samples_are_needed_after_a_silence() -> None:
    station, gpu = four(93.0, gpu_unknown="last")
    station.crowd(5)
    gpu.hang()
    station.tick(60)
    gpu.recover()
    gpu.utilization_pct = 50.0
    assert [station.tick().factor for _ in range(4)] == [0.4, 0.4, 1.0, 1.0]


def test_flapping_device_counts_as_lost() -> None:
    station, gpu = four(60.0)
    station.crowd(4)
    gpu.lose(3)
    station.tick()
    for _ in range(20):
        gpu.recover()
        station.crowd(1)
        assert station.throttle.control_state().factor == 0.75
        gpu.lose(3)
        station.crowd(1)
        assert station.throttle.control_state().factor == 0.75


@pytest.mark.parametrize("policy", ["tiers", "adaptive"])
def test_retry_after_of_loss_is_exact(policy: str) -> None:
    station, gpu = four(60.0, policy=policy)
    station.tick(3)
    for index in range(4):
        gpu.lose(index)
    station.tick()
    gpu.recover()
    told_s = station.clock() + station.wait_s()
    while station.clock() < told_s:
        assert station.detail() == "gpu:lost"
        assert station.clock() + station.wait_s() == pytest.approx(told_s)
        if (station.clock() + 0.25) % 1.0:
            station.clock.advance(0.25)
        else:
            station.tick(every_s=0.25)
    assert station.detail() == ""


def test_loss_with_silence_admits_nothing_more() -> None:
    """One device is lost, then the source dies: the capacity drifts back, never above the nominal rates."""
    station, gpu = four(60.0)
    station.crowd(3)
    gpu.lose(0)
    station.crowd(2)
    gpu.hang()
    factors = [station.tick().factor for _ in range(40)]
    assert factors[:3] == [0.75] * 3
    assert factors == sorted(factors)
    assert factors[-1] == 1.0
