"""An implausible exporter: its numbers are unknown, its devices are bounded, requests are unaffected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoglm_throttle import GpuSample, Reason, TelemetryState
from autoglm_throttle.testing import FakeGpu, ManualClock
from tests.gpu.metrics_server import BadServer, page, served
from tests.gpu.throttled_service import WALL_S, Service, of_settings

MEGABYTES = 1024 * 1024


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


@pytest.mark.parametrize(
    "number",
    ["NaN", "+Inf", "-Inf", "-1", "250", "1e308", "9223372036854775794", "2147483632", "140737488355328"],
)
def test_implausible_values_are_unknown(server: BadServer, number: str) -> None:
    server.answer = page(
        f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} {number}\nDCGM_FI_DEV_POWER_USAGE{{UUID="a"}} {number}\n'
        'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 50\n'.encode()
    )
    service = of_settings(f"dcgm:{server.url()}", gpu_unknown="last")
    service.tick(10)
    snapshot = service.throttle.snapshot()
    assert snapshot.view is not None
    assert snapshot.view.utilization_pct is None, "neither 0 nor 100"
    assert snapshot.devices[0].power_w == (250.0 if number == "250" else None)
    assert snapshot.devices[0].temperature_c == 50.0
    assert (snapshot.control.factor, snapshot.ready) == (1.0, True)
    assert service.detail() == ""


def test_implausible_hot_device_is_counted_without_effect(server: BadServer) -> None:
    service = of_settings(f"dcgm:{server.url()}")
    for second in range(5):
        server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} {93 + second / 10}\n'.encode())
        service.tick()
    assert service.throttle.control_state().factor == 0.4
    server.answer = page(b'DCGM_FI_DEV_GPU_UTIL{UUID="a"} -5\nDCGM_FI_DEV_GPU_TEMP{UUID="a"} 50\n')
    assert [service.tick().factor for _ in range(3)] == [0.4] * 3
    assert service.throttle.snapshot().sources[0].implausible == 3


@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats()), min_size=1, max_size=6))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_reach_requests_only_through_the_control_state(
    readings: list[tuple[float, float, float]],
) -> None:
    clock = ManualClock()
    gpu = FakeGpu(2, engines=1, clock=clock)
    service = Service(gpu, clock)
    for first, second, third in readings:
        gpu.utilization_pct = gpu.power_w = gpu.age_s = first
        gpu.power_limit_w = gpu.sm_clock_mhz = gpu.energy_j = second
        gpu.kv_used_ratio = gpu.tokens_per_s = gpu.period_s = third
        control_state = service.tick()
        assert 0.0 <= control_state.factor <= 1.0
        assert service.detail() in {"", "gpu:overload"}
    assert service.throttle.snapshot().sources[0].failures == 0
    assert service.throttle.control.monitor.samplers["fake"].status.callback_errors == 0


@pytest.mark.parametrize("stamp", ["0", "-1", "NaN", "1e300", str(WALL_S), "99999999999999999999"])
def test_odd_stamps_are_old_or_none(server: BadServer, stamp: str) -> None:
    """Seconds instead of milliseconds are a time in January 1970."""
    server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} 99 {stamp}\n'.encode())
    service = of_settings(f"dcgm:{server.url()}")
    service.tick(12)
    assert service.throttle.control_state().factor == 1.0
    assert service.throttle.control_state().telemetry in {TelemetryState.STALE, TelemetryState.BLIND}


def test_five_megabytes_of_noise_are_one_failure(server: BadServer) -> None:
    server.answer = page((b'junk{a="' + b"b" * 500 + b'"} 1\n') * (5 * MEGABYTES // 512))
    service = of_settings(f"dcgm:{server.url()}")
    service.throttle.tick()
    (source,) = service.throttle.snapshot().sources
    assert source.failures == 1
    assert len(source.last_error) < 500
    server.answer = page(b"\xff\x00" * (5 * MEGABYTES // 2))
    service.throttle.tick()
    assert service.throttle.snapshot().sources[0].failures == 2
    assert service.detail() == ""


def test_devices_that_change_their_names_leave_the_memory(server: BadServer) -> None:
    service = of_settings(f"dcgm:{server.url()}", policy="adaptive")

    for second in range(8):
        lines = (
            f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="{second}-{n}"}} {second}\n' for n in range(256)
        )
        server.answer = page("".join(lines).encode())
        service.tick()
    devices = service.throttle.snapshot().devices
    assert len(devices) == 1024
    assert {row.device[0] for row in devices if row.health == "ok"} == {"7"}
    assert service.reasons[Reason.GPU] == 0


def test_too_many_devices_are_a_failure(server: BadServer) -> None:
    server.answer = page("".join(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{n}"}} 99\n' for n in range(1025)).encode())
    service = of_settings(f"dcgm:{server.url()}")
    service.tick()
    snapshot = service.throttle.snapshot()
    assert (len(snapshot.devices), snapshot.sources[0].failures) == (0, 1)


def test_engines_that_change_their_names_are_forgotten_at_once() -> None:
    clock = ManualClock()

    class Renamed(FakeGpu):
        reads = 0

        def read(self) -> Sequence[GpuSample]:
            self.reads += 1
            return [
                replace(row, device=f"engine-{self.reads}-{row.index}") if row.kind == "engine" else row
                for row in super().read()
            ]

    service = Service(Renamed(1, engines=4, clock=clock), clock)
    service.tick(100)
    assert len(service.throttle.snapshot().devices) == 5
