"""A device at 100 %: the requests rejected because of it, by policy and signal."""

from typing import Any

import pytest

from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import Signal
from tests.gpu.throttled_service import Named, Service

SAMPLES = 3


def busy(engines: int = 0, **settings: Any) -> tuple[Service, FakeGpu]:
    """Build a device at 100 % with memory reserved by an engine that has capacity."""
    clock = ManualClock()
    gpu = FakeGpu(1, engines=engines, clock=clock)
    gpu.utilization_pct = 100.0
    gpu.memory_used_bytes, gpu.memory_total_bytes = 93, 100
    gpu.running, gpu.queued, gpu.kv_used_ratio = 30, 2, 0.6
    return Service(gpu, clock, **settings), gpu


@pytest.mark.parametrize(
    ("signal", "engines"), [("utilization", 0), ("utilization", 1), ("pressure", 1), ("auto", 1), ("auto", 0)]
)
def test_adaptive_rejects_nothing_for_busy_serving_gpu(signal: str, engines: int) -> None:
    service, _ = busy(engines, policy="adaptive", signal=signal)
    assert service.overload(90, rps=60, takes_s=0.5) == [60] * 90
    assert not service.rejected
    assert service.throttle.control_state().factor == 1.0


@pytest.mark.parametrize("engines", [0, 1])
def test_adaptive_keeps_completed_rate_of_full_service(engines: int) -> None:
    """At twice the capacity as many requests complete as without the table."""
    goodput = {}
    for policy in ("concurrency", "adaptive"):
        service, gpu = busy(engines, policy=policy, inflight_start=16, inflight_max=16)
        gpu.kv_used_ratio = 0.95
        goodput[policy] = sum(service.overload(60, rps=64, takes_s=0.5)[10:])
    assert goodput["adaptive"] >= 0.98 * goodput["concurrency"]


def test_limiter_must_confirm_at_three_samples() -> None:
    """Many requests arrive after an hour at 100 %: those samples do not count."""
    service, _ = busy(policy="adaptive", inflight_start=8, inflight_max=8)
    service.tick(100)
    service.overload(2, rps=200, takes_s=1.0)
    assert not service.telemetry_rejections
    service.overload(3, rps=200, takes_s=1.0)
    assert service.rejected["gpu:utilization"] > 0


@pytest.mark.parametrize("utilization_pct", [85.1, 87.0, 90.0, 90.1, 95.0, 95.1, 100.0])
@pytest.mark.parametrize("engines", [0, 1])
def test_tiers_follow_the_bands_exactly_with_the_raw_number(utilization_pct: float, engines: int) -> None:
    service, gpu = busy(engines, signal="utilization")
    gpu.utilization_pct = utilization_pct
    left = 0.7 if utilization_pct <= 90.0 else 0.4 if utilization_pct <= 95.0 else 0.0
    assert [service.tick().factor for _ in range(SAMPLES)] == [1.0] * (SAMPLES - 1) + [left]
    assert service.throttle.control_state().term == "utilization"
    assert service.detail() == ("gpu:overload" if not left else "")


def test_tiers_need_three_new_samples_in_a_row() -> None:
    service, gpu = busy(signal="utilization")
    for utilization_pct in (100.0, 100.0, 85.0) * 5:
        gpu.utilization_pct = utilization_pct
        assert service.tick().factor == 1.0
    gpu.utilization_pct = 100.0
    service.tick()
    gpu.stale()
    assert service.tick(3).factor == 1.0, "the same measurement thrice is one strike"


@pytest.mark.parametrize("signal", ["pressure", "auto"])
def test_tiers_leave_all_with_the_pressure_of_a_healthy_engine(signal: str) -> None:
    service, _ = busy(1, signal=signal)
    assert service.overload(60, rps=60, takes_s=0.5) == [60] * 60
    assert not service.rejected
    control_state = service.throttle.control_state()
    assert (control_state.factor, control_state.signal, control_state.term) == (1.0, Signal.PRESSURE, "kv")


@pytest.mark.parametrize(("engines", "factor", "term"), [(1, 1.0, "kv"), (0, 0.0, "memory")])
def test_memory_that_fills_is_load_only_where_no_engine_takes_it(
    engines: int, factor: float, term: str
) -> None:
    service, gpu = busy(engines, signal="pressure")
    gpu.memory_used_bytes = 30
    service.tick(2)
    gpu.memory_used_bytes = 93
    control_state = service.tick(3)
    assert (control_state.factor, control_state.term) == (factor, term)


@pytest.mark.parametrize(
    ("readings", "factor", "term"),
    [
        ({"kv_used_ratio": 0.70}, 0.7, "kv"),  # 87.5 % of the target of 0.8
        ({"kv_used_ratio": 0.74}, 0.4, "kv"),
        ({"kv_used_ratio": 0.80}, 0.0, "kv"),
        ({"kv_used_ratio": 1.00}, 0.0, "kv"),
        ({"queued": 5}, 0.0, "queue"),
    ],
)
def test_tiers_follow_the_bands_exactly_with_the_pressure(
    readings: dict[str, float], factor: float, term: str
) -> None:
    service, gpu = busy(1)
    gpu.utilization_pct = 10.0
    gpu.set_engine(0, **readings)
    assert [service.tick().factor for _ in range(SAMPLES)] == [1.0] * (SAMPLES - 1) + [factor]
    assert service.throttle.control_state().term == term


@pytest.mark.parametrize(
    ("readings", "term"),
    [
        ({"kv_used_ratio": 0.95}, "kv"),
        ({"queued": 40}, "queue"),
        ({"kv_used_ratio": 0.9, "queued": 40}, "queue"),
    ],
)
def test_rejection_names_the_deciding_term(readings: dict[str, float], term: str) -> None:
    service, gpu = busy(1, policy="adaptive", inflight_start=8, inflight_max=8)
    gpu.set_engine(0, **readings)
    service.overload(8, rps=200, takes_s=0.5)
    named = {detail for detail in service.rejected if detail.startswith("gpu:")}
    assert f"gpu:{term}" in named
    assert named <= {f"gpu:{term}", "gpu:ceiling"}


@pytest.mark.parametrize("sources", [1, 2, 4, 8])
def test_three_samples_take_two_intervals_for_any_sources(sources: int) -> None:
    """Each source has devices of its own and is read once a second, all of them in turn."""
    clock = ManualClock()
    gpus = [Named(f"dcgm:host-{number}", clock, own=True) for number in range(sources)]
    for gpu in gpus:
        gpu.utilization_pct = 99.0
    service = Service(gpus, clock)
    samplers = service.throttle.control.monitor.samplers
    first_s = clock() + 1.0 / sources
    while service.throttle.control_state().factor == 1.0:
        for gpu in gpus:
            clock.advance(1.0 / sources)
            if service.throttle.control_state().factor == 1.0:
                samplers[gpu.name].tick()
                cut_s = clock()
    assert len(service.throttle.snapshot().devices) == sources
    assert cut_s - first_s > 1.0, "and not as many strikes in a second as there are sources"
