"""An exporter that dies, over real HTTP: stepwise to the state of ``GPU_UNKNOWN``, and back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from autoglm_throttle import TelemetryState
from autoglm_throttle.types import Signal
from tests.gpu.exporter_texts import text
from tests.gpu.metrics_server import BadServer, page, raw, served
from tests.gpu.throttled_service import Service, of_settings

STATES = (
    [TelemetryState.FRESH] * 2
    + [TelemetryState.LATE]
    + [TelemetryState.STALE] * 27
    + [TelemetryState.BLIND] * 10
)
"""At each second after the last sample."""

ASSUMED = {"open": 1.0, "conservative": 0.7, "closed": 0.0}


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


class Exporter:
    def __init__(self, server: BadServer) -> None:
        self._server = server
        self._measured = 0

    def says(self, utilization_pct: float) -> None:
        self._measured += 1
        text = (
            f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} {utilization_pct}\n'
            f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="a"}} {self._measured * 1e6}\n'
        )
        self._server.answer = page(text.encode())


def listening(server: BadServer, utilization_pct: float, **settings: str) -> Service:
    service = of_settings(f"dcgm:{server.url()}", **settings)
    exporter = Exporter(server)
    for _ in range(3):
        exporter.says(utilization_pct)
        service.tick()
    return service


@pytest.mark.parametrize("unknown", ["open", "last", "conservative", "closed"])
@pytest.mark.parametrize(("utilization_pct", "held"), [(50.0, 1.0), (87.0, 0.7), (93.0, 0.4), (99.0, 0.0)])
def test_the_factor_goes_straight_from_held_to_assumed(
    server: BadServer, unknown: str, utilization_pct: float, held: float
) -> None:
    service = listening(server, utilization_pct, gpu_unknown=unknown)
    assert service.throttle.control_state().factor == held
    server.down()
    seen = [service.tick() for _ in range(len(STATES))]
    assert [control_state.telemetry for control_state in seen] == STATES
    factors = [control_state.factor for control_state in seen]
    assumed = ASSUMED.get(unknown, held)
    assert factors[:3] == [held] * 3, "late is held"
    assert factors[29:] == pytest.approx([assumed] * 11)
    assert factors == sorted(factors, reverse=assumed < held)
    assert max(abs(after - before) for before, after in pairwise(factors)) <= 1.0 / 27.0 + 1e-9
    if unknown == "closed":
        assert service.detail() == "gpu:blind"
        assert service.throttle.snapshot().ready, "a dead exporter takes no service off the net"


@pytest.mark.parametrize(
    "error",
    [
        page(b"", status="503 Service Unavailable"),
        page(b"<html>moved</html>"),
        page(b"up 1\n"),
        page(b'DCGM_FI_DEV_GPU_UTIL{UUID="a"} 50\n', length=10_000),
        raw(b"HTTP/1.1 200 OK\r\n"),
        raw(b"\x00\xff" * 999),
    ],
    ids=["503", "html", "of another", "cut off", "no body", "noise"],
)
def test_every_kind_of_failure_is_the_same_silence(server: BadServer, error: object) -> None:
    service = listening(server, 93.0)
    server.answer = error  # type: ignore[assignment]
    assert [service.tick().telemetry for _ in range(4)] == STATES[:4]
    (source,) = service.throttle.snapshot().sources
    assert (source.failures, source.state) == (4, "failing")
    assert "127.0.0.1" in source.last_error


def test_closed_rejects_all_until_first_sample(server: BadServer) -> None:
    server.down()
    service = of_settings(f"dcgm:{server.url()}", gpu_unknown="closed")
    assert [service.tick().factor for _ in range(10)] == [0.0] * 10
    server.up()
    Exporter(server).says(50.0)
    exporter = Exporter(server)
    for _ in range(3):
        exporter.says(50.0)
        service.tick()
    assert service.throttle.control_state().factor == 1.0


def test_each_telemetry_step_is_logged_once(server: BadServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")
    service = listening(server, 93.0)
    server.down()
    for _ in range(50):
        service.tick()
        service.request()
    server.up()
    exporter = Exporter(server)
    for _ in range(10):
        exporter.says(50.0)
        service.tick(1, every_s=1.0)
    lines = [vars(record) for record in caplog.records]
    texts = [line["state"] for line in lines if line.get("event") == "telemetry_changed"]
    assert texts == ["fresh", "late", "stale", "blind", "fresh"]


def test_three_new_samples_after_the_exporter_is_back(server: BadServer) -> None:
    service = listening(server, 93.0, gpu_unknown="last")
    server.down()
    service.tick(40)
    server.up()
    exporter = Exporter(server)
    factors = []
    for _ in range(5):
        exporter.says(50.0)
        factors.append(service.tick().factor)
    assert factors == [0.4, 0.4, 1.0, 1.0, 1.0]


def test_a_source_that_is_not_there_at_the_start_is_blindness(server: BadServer) -> None:
    server.down()
    service = of_settings(f"dcgm:{server.url()}")
    states = [service.tick().telemetry for _ in range(7)]
    assert states == [TelemetryState.STARTING] * 5 + [TelemetryState.BLIND] * 2
    assert service.throttle.control_state().factor == 1.0
    assert service.throttle.snapshot().ready


@pytest.mark.parametrize(
    ("unknown", "factor"), [(None, 0.0), ("last", 0.0), ("closed", 0.0), ("conservative", 0.7), ("open", 1.0)]
)
def test_engine_that_dies_beside_its_devices_opens_nothing_at_once(
    server: BadServer, unknown: str | None, factor: float
) -> None:
    """FIELD 11: the factor rose from 0 to 1 after 5 s, under every GPU_UNKNOWN."""
    chosen = {} if unknown is None else {"gpu_unknown": unknown}
    with served() as engine:
        engine.answer = page(text("vllm_1").replace(" 0.8812", " 0.99").encode())
        service = of_settings(f"dcgm:{server.url()}", f"vllm:{engine.url()}", **chosen)
        exporter, factors = Exporter(server), []
        for second in range(60):
            exporter.says(60.0)
            factors.append(service.tick().factor)
            if second == 5:
                engine.down()
        assert factors[5] == 0.0
        assert max(factors[6:12]) <= 0.2, "it ages as any signal"
        assert factors[-1] == pytest.approx(factor)
        assert service.throttle.control_state().signal is Signal.UTILIZATION
