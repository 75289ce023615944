"""The throttle whose time and GPUs belong to the test."""

from typing import Any

import pytest

from autoglm_throttle import ConfigError, Demand, Priority, TelemetryState
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from autoglm_throttle.types import Policy


def test_acts_at_the_third_busy_sample_without_traffic() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 92.0
    assert [throttle.tick().factor for _ in range(3)] == [1.0, 1.0, 0.4]


def test_many_ticks_are_one_call() -> None:
    throttle = throttle_for_tests(sample_interval_s=2.0)
    began = throttle.clock()
    throttle.gpu.utilization_pct = 96.0
    assert throttle.tick(3).factor == 0.0
    assert throttle.clock() == began + 6.0


def test_no_tick_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        throttle_for_tests().tick(0)


def test_takes_clock_and_gpu_from_the_test() -> None:
    clock = ManualClock(7.0)
    gpu = FakeGpu(devices=4, clock=clock)
    throttle = throttle_for_tests(clock=clock, gpu=gpu)
    assert (throttle.clock, throttle.gpu) == (clock, gpu)
    throttle.tick()
    assert len(throttle.snapshot().devices) == 4
    assert throttle.snapshot().taken_at_s == 8.0


@pytest.mark.parametrize("start_s", [0.0, 60.0, 1000.0, 1e9])
def test_a_gpu_without_a_clock_gets_that_of_the_throttle(start_s: float) -> None:
    """It had that of the machine: one that was on for less than 1000 s stamped readings that were too old."""
    gpu = FakeGpu()
    throttle = throttle_for_tests(clock=ManualClock(start_s), gpu=gpu)
    gpu.utilization_pct = 96.0
    assert throttle.tick(3).factor == 0.0
    assert gpu.read()[0].taken_at_s == throttle.clock()


def test_a_gpu_keeps_the_clock_that_it_has() -> None:
    first, second = ManualClock(1.0), ManualClock(2.0)
    given, taken = FakeGpu(clock=first), FakeGpu()
    for clock in (first, second):
        throttle_for_tests(clock=clock, gpu=given)
        throttle_for_tests(clock=clock, gpu=taken)
    assert [gpu.read()[0].taken_at_s for gpu in (given, taken)] == [1.0, 1.0]


def test_a_hang_from_before_the_throttle_ends_after_its_time() -> None:
    gpu = FakeGpu()
    gpu.hang(2.0)
    throttle = throttle_for_tests(gpu=gpu)
    assert not gpu.read()
    throttle.clock.advance(2.0)
    assert gpu.read()


def test_settings_win_over_what_suits_tests() -> None:
    assert throttle_for_tests().settings.control.policy is Policy.TIERS
    assert throttle_for_tests().settings.responses.retry_jitter == 0.0
    assert throttle_for_tests(policy="fixed", retry_jitter=0.5).settings.responses.retry_jitter == 0.5
    with pytest.raises(ConfigError, match="rate_low"):
        throttle_for_tests(rate_low=3)  # type: ignore[call-arg]  # type checkers find it, too


def test_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_RATE_LOW_RPS", "7")
    assert throttle_for_tests().settings.rates.rate_low_rps == 100.0


def test_never_starts_a_thread() -> None:
    throttle = throttle_for_tests()
    assert throttle.try_admit(Demand(Priority.HIGH)).admitted
    assert throttle.control.monitor.has_sources
    assert not throttle.control.monitor.is_running
    assert throttle.snapshot().control.telemetry is TelemetryState.STARTING


def test_the_name_of_a_source_is_no_gpu() -> None:
    named: Any = "nvml"
    with pytest.raises(TypeError, match=r"gpu must be a FakeGpu, not 'nvml': .* FakeNvml"):
        throttle_for_tests(gpu=named)
