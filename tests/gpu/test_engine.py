"""Engines joined to devices: the signal used by the bands, and the change when one falls silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autoglm_throttle import GpuSample, ProviderUnavailable, TelemetryState
from autoglm_throttle.control.signal import LOSS_HOLD_S
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import Signal
from autoglm_throttle.types.errors import NoSourceError
from tests.gpu.throttled_service import Named, Service

STALE_S = 3
GONE = ProviderUnavailable("connection refused")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def device(clock: ManualClock) -> Named:
    return Named("nvml", clock)


@pytest.fixture
def engine(clock: ManualClock) -> Named:
    return Named("vllm:host:8000", clock, devices=0, engines=1)


@pytest.fixture
def service(clock: ManualClock, device: Named, engine: Named) -> Service:
    device.utilization_pct, engine.kv_used_ratio = 100.0, 0.5
    return Service((device, engine), clock)


def test_engine_pressure_overrides_busy_device(service: Service) -> None:
    assert service.tick(20).factor == 1.0
    control_state = service.throttle.control_state()
    assert (control_state.signal, control_state.term) == (Signal.PRESSURE, "kv")
    assert control_state.load == pytest.approx(0.625)
    view = service.throttle.snapshot().view
    assert view is not None
    assert (view.engines, view.utilization_pct, len(view.verdicts)) == (1, 100.0, 1), (
        "an engine has no verdict"
    )


def test_one_source_in_a_list_is_that_source(clock: ManualClock, device: Named) -> None:
    device.utilization_pct = 92.0
    assert Service([device], clock).tick(3).factor == 0.4


def test_duplicate_source_name_is_rejected(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="two sources have the same name"):
        Service((Named("nvml", clock), Named("nvml", clock)), clock)


def test_no_source_in_a_list_is_no_source(clock: ManualClock) -> None:
    assert Service((), clock).throttle.control_state().telemetry is TelemetryState.NONE


def test_silent_engine_is_replaced_by_devices(service: Service, engine: Named) -> None:
    service.tick(5)
    engine.fail_with(GONE)
    for _ in range(STALE_S):
        control_state = service.tick()
        assert (control_state.signal, control_state.factor) == (Signal.PRESSURE, 1.0)
    seen = [service.tick() for _ in range(4)]
    assert [control_state.signal for control_state in seen] == [Signal.UTILIZATION] * 4
    assert [control_state.telemetry for control_state in seen] == [TelemetryState.FRESH] * 4
    assert [control_state.factor for control_state in seen] == [1.0, 1.0, 0.0, 0.0], (
        "three new samples of the cards"
    )
    view = service.throttle.snapshot().view
    assert view is not None
    assert (view.engines, view.kv_used_ratio) == (0, None)


def test_engine_signal_resumes_with_its_first_sample(service: Service, device: Named, engine: Named) -> None:
    service.tick(5)
    engine.fail_with(GONE)
    service.tick(10)
    assert service.throttle.control_state().factor == 0.0
    engine.recover()
    control_state = service.tick()
    assert (control_state.signal, control_state.term, control_state.telemetry) == (
        Signal.PRESSURE,
        "kv",
        TelemetryState.FRESH,
    )
    assert service.tick(3).factor == 1.0


def test_an_engine_that_flickers_is_held_for_alive(service: Service, engine: Named) -> None:
    for _ in range(10):
        engine.fail_with(GONE)
        service.tick(2)
        engine.recover()
        assert service.tick().signal is Signal.PRESSURE
    assert service.throttle.control_state().factor == 1.0


def test_silent_devices_do_not_affect_engine_signal(service: Service, device: Named, engine: Named) -> None:
    service.tick(5)
    device.hang()
    engine.kv_used_ratio = 0.72
    seen = [service.tick() for _ in range(40)]
    assert {control_state.telemetry for control_state in seen} == {TelemetryState.FRESH}
    assert seen[-1].factor == 0.7


def test_lost_device_counts_despite_engine_samples(service: Service, device: Named) -> None:
    service.tick(5)
    device.lose()
    assert service.tick().factor == 0.0
    assert service.detail() == "gpu:lost"
    assert not service.throttle.snapshot().ready


def test_silence_of_both_goes_down_the_ladder_of_the_engine(
    service: Service, device: Named, engine: Named
) -> None:
    engine.kv_used_ratio = 0.72
    assert service.tick(5).factor == 0.7
    device.hang()
    engine.hang()
    states = [service.tick().telemetry for _ in range(35)]
    assert states[:4] == [
        TelemetryState.FRESH,
        TelemetryState.FRESH,
        TelemetryState.LATE,
        TelemetryState.STALE,
    ]
    assert states[-1] is TelemetryState.BLIND
    assert service.throttle.control_state().factor == 0.7


@pytest.mark.parametrize("signal", ["pressure", "utilization"])
def test_a_stated_signal_is_not_left(signal: str, clock: ManualClock, device: Named, engine: Named) -> None:
    service = Service((device, engine), clock, signal=signal)
    service.tick(5)
    (engine if signal == "pressure" else device).hang()
    service.tick(4)
    assert service.throttle.control_state().signal == signal
    assert service.throttle.control_state().telemetry is TelemetryState.STALE


def test_two_engines_are_one_queue_and_the_larger_fill_by_choice(clock: ManualClock, device: Named) -> None:
    engines = [Named(f"vllm:host:{port}", clock, devices=0, engines=1) for port in (1, 2)]
    for number, one in enumerate(engines):
        one.queued, one.kv_used_ratio = 4 * number, 0.2
    service = Service((device, *engines), clock)
    service.tick(3)
    assert service.throttle.snapshot().pressure["queue"] == pytest.approx(4 / (5 * 2))
    engines[0].hang()
    service.tick(4)
    assert service.throttle.snapshot().pressure["queue"] == pytest.approx(4 / 5), "that of the living one"


def test_source_order_decides_precedence(clock: ManualClock) -> None:
    uuid = "GPU-5a1c7f3e-0b2d-4c6a-9e8f-112233445500"

    class Same(Named):
        def read(self) -> Sequence[GpuSample]:
            return [replace(row, device=uuid) for row in super().read()]

    first, second = Same("nvml", clock), Same("dcgm:host:9400", clock)
    first.utilization_pct, second.utilization_pct, second.power_w = 20.0, 99.0, 300.0
    service = Service((first, second), clock)
    assert service.tick(5).factor == 1.0
    (row,) = service.throttle.snapshot().devices
    assert (row.utilization_pct, row.power_w) == (20.0, 300.0), "the first that knows"
    first.hang()
    service.tick(3)
    assert service.tick().load == pytest.approx(0.99), "the other, once the first is silent"


class Absent(Named):
    """The automatic source on a machine without a GPU."""

    def read(self) -> Sequence[GpuSample]:
        raise NoSourceError("no GPU found")


def test_engine_without_devices_is_the_only_signal(clock: ManualClock, engine: Named) -> None:
    engine.kv_used_ratio = 0.5
    service = Service((Absent("auto", clock), engine), clock)
    control_state = service.tick(3)
    assert (control_state.signal, control_state.telemetry, control_state.factor) == (
        Signal.PRESSURE,
        TelemetryState.FRESH,
        1.0,
    )
    assert [one.state for one in service.throttle.snapshot().sources] == ["no_source", "reading"]
    engine.kv_used_ratio = 0.72
    assert service.tick(3).factor == 0.7
    engine.fail_with(GONE)
    states = [service.tick().telemetry for _ in range(5)]
    assert states[-1] is TelemetryState.STALE, "its silence is no absence"
    assert service.throttle.snapshot().ready


def test_neither_device_nor_engine_is_no_source(clock: ManualClock) -> None:
    service = Service((Absent("auto", clock), Absent("other", clock)), clock)
    control_state = service.tick(20)
    assert (control_state.telemetry, control_state.factor) == (TelemetryState.NONE, 1.0)


def test_engine_without_samples_leaves_devices_in_control(
    clock: ManualClock, device: Named, engine: Named
) -> None:
    engine.fail_with(GONE)
    device.utilization_pct = 92.0
    control_state = Service((device, engine), clock).tick(3)
    assert (control_state.signal, control_state.factor) == (Signal.UTILIZATION, 0.4)


def test_loss_of_the_hot_engine_of_two_releases_nothing_for_a_while(clock: ManualClock) -> None:
    """FIELD 11: the pressure of the engine that is left would look like relief."""
    hot, calm = (Named(f"vllm:host:{port}", clock, devices=0, engines=1) for port in (8000, 8001))
    hot.queued, calm.queued = 20, 0
    service = Service((hot, calm), clock)
    assert service.tick(5).factor == 0.0
    hot.fail_with(GONE)
    factors = [service.tick().factor for _ in range(STALE_S + 40)]
    assert set(factors[: STALE_S + int(LOSS_HOLD_S)]) == {0.0}
    assert factors[-1] == 1.0
