"""Repeated old measurements, over real HTTP: they have no effect, and are not stale early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autoglm_throttle import TelemetryState
from tests.gpu.metrics_server import BadServer, page, served
from tests.gpu.throttled_service import WALL_S, of_settings

UUID = "GPU-5a1c7f3e-0b2d-4c6a-9e8f-112233445500"
PERIOD_S = 30


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


class Exporter:
    """A source that measures every 30 s, and is read every second."""

    def __init__(self, server: BadServer, counter: bool = True, **settings: Any) -> None:
        self.utilization_pct = 50.0
        self.service = of_settings(f"dcgm:{server.url()}", **settings)
        self._server = server
        self._counter = counter
        self._measurements = 0
        self._age_s = 0

    def seconds(self, number: int) -> list[TelemetryState]:
        states = []
        for _ in range(number):
            if self._age_s % PERIOD_S == 0:
                self._measure()
            self._age_s += 1
            states.append(self.service.tick().telemetry)
        return states

    def _measure(self) -> None:
        self._measurements += 1
        lines = [f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}"}} {self.utilization_pct}']
        if self._counter:
            lines.append(f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="{UUID}"}} {self._measurements * 9e6}')
        else:
            lines.append(f'DCGM_FI_DEV_GPU_TEMP{{UUID="{UUID}"}} {40 + self._measurements % 2}')
        self._server.answer = page("\n".join([*lines, ""]).encode())


@pytest.mark.parametrize("counter", [True, False])
def test_one_measurement_is_not_stale_for_its_period(server: BadServer, counter: bool) -> None:
    exporter = Exporter(server, counter)
    exporter.seconds(4 * PERIOD_S)
    assert set(exporter.seconds(10 * PERIOD_S)) == {TelemetryState.FRESH}


@pytest.mark.parametrize("counter", [True, False])
def test_one_hot_measurement_seen_thirty_times_causes_nothing(server: BadServer, counter: bool) -> None:
    exporter = Exporter(server, counter)
    exporter.seconds(4 * PERIOD_S)
    for _ in range(3):
        exporter.utilization_pct = 99.0
        exporter.seconds(2 * PERIOD_S)  # two strikes
        assert exporter.service.throttle.control_state().factor == 1.0
        exporter.utilization_pct = 50.0
        exporter.seconds(PERIOD_S)
        assert exporter.service.throttle.control_state().factor == 1.0
    exporter.utilization_pct = 99.0
    exporter.seconds(2 * PERIOD_S + 1)
    assert exporter.service.throttle.control_state().factor == 0.0, "three measurements are three strikes"


def test_thirty_looks_at_the_first_measurement_are_one(server: BadServer) -> None:
    exporter = Exporter(server)
    exporter.utilization_pct = 99.0
    exporter.seconds(PERIOD_S)
    assert exporter.service.throttle.control_state().factor == 1.0


def test_a_missed_measurement_is_late_and_two_are_stale(server: BadServer) -> None:
    exporter = Exporter(server)
    exporter.seconds(4 * PERIOD_S)
    exporter.service.tick(PERIOD_S + 2)
    assert exporter.service.throttle.control_state().telemetry is TelemetryState.LATE
    exporter.service.tick(2 * PERIOD_S)
    assert exporter.service.throttle.control_state().telemetry is TelemetryState.STALE


def test_identical_pages_never_make_three_strikes(server: BadServer) -> None:
    server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}"}} 99\n'.encode())
    service = of_settings(f"dcgm:{server.url()}")
    assert {service.tick().factor for _ in range(120)} == {1.0}
    assert service.throttle.control_state().telemetry is TelemetryState.BLIND, (
        "nobody knows whether it still measures"
    )


def test_an_engine_that_says_the_same_is_new_each_time(server: BadServer) -> None:
    """A full queue may be constant; its page is made at the request."""
    server.answer = page(b"vllm:num_requests_waiting 40\nvllm:num_requests_running 8\n")
    service = of_settings(f"vllm:{server.url()}")
    assert [service.tick().factor for _ in range(3)] == [1.0, 1.0, 0.0]
    assert service.tick(60).telemetry is TelemetryState.FRESH


def test_the_stamp_of_a_source_is_its_age(server: BadServer) -> None:
    """It was measured two seconds before the first read, and never again."""
    stamp_ms = (WALL_S - 2.0) * 1000.0
    server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}"}} 90 {stamp_ms:.0f}\n'.encode())
    service = of_settings(f"dcgm:{server.url()}")
    service.throttle.tick()
    assert service.throttle.control_state().telemetry is TelemetryState.FRESH
    states = [service.tick().telemetry for _ in range(29)]
    assert states == [TelemetryState.LATE] + [TelemetryState.STALE] * 27 + [TelemetryState.BLIND]


@pytest.mark.parametrize("ahead_s", [5.0, 59.0, 3600.0, 1e12])
def test_a_stamp_ahead_of_us_is_no_age(server: BadServer, ahead_s: float) -> None:
    stamp_ms = (WALL_S + ahead_s) * 1000.0
    server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{UUID}"}} 90 {stamp_ms:.0f}\n'.encode())
    service = of_settings(f"dcgm:{server.url()}")
    service.throttle.tick()
    assert service.throttle.control_state().telemetry is TelemetryState.FRESH
    assert service.throttle.snapshot().devices[0].age_s == 0.0
    assert service.tick(6).telemetry is not TelemetryState.FRESH, "it is one measurement all the same"
