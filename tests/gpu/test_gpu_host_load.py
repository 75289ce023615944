"""The host's load if it is known, else None."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from autoglm_throttle.gpu import host
from autoglm_throttle.gpu.host import ControlGroup, HostLoad, HostSampler

NOWHERE = Path("/does/not/exist")


class Times(NamedTuple):
    """Seconds of all cores in the order of psutil; a guest's are those of user, too."""

    user: float = 0.0
    nice: float = 0.0
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    irq: float = 0.0
    softirq: float = 0.0
    steal: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.function is not test_this_host:
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 1.0, 1.0))


def sampler(monkeypatch: pytest.MonkeyPatch, *times: object) -> HostSampler:
    """A sampler with these processor times, one for each reading; without any psutil is missing."""
    reads = iter(times).__next__ if times else None
    monkeypatch.setattr(host, "_cpu_times_of_psutil", lambda: reads)
    return HostSampler(ControlGroup(NOWHERE, NOWHERE))


def test_load_is_per_core_and_iowait_since_the_reading_before(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = Times(user=100, idle=100, iowait=100), Times(user=150, idle=120, iowait=130, guest=150)
    read = sampler(monkeypatch, first, later, later, later._replace(user=250)).read
    assert read() == HostLoad(0.75)
    assert read() == HostLoad(0.75, 0.3)
    assert read()[1] is None, "no time has passed"
    assert read()[1] == 0.0


def test_falling_counter_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(100, idle=100, iowait=100), Times(190, idle=100, iowait=90)
    read = sampler(monkeypatch, *times).read
    assert [read()[1], read()[1]] == [None, None]


def test_system_without_iowait_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    read = sampler(monkeypatch, None, (1.0, 2.0), None).read
    assert [read()[1] for _ in range(3)] == [None] * 3


def test_without_psutil_iowait_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    read = sampler(monkeypatch).read
    assert [read(), read()] == [HostLoad(0.75)] * 2


def test_host_without_figures_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects() -> tuple[float, float, float]:
        raise OSError("load average is unobtainable")

    monkeypatch.setattr(os, "getloadavg", rejects)
    read = sampler(monkeypatch).read
    assert [read(), read()] == [HostLoad()] * 2


def test_unknown_core_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert sampler(monkeypatch).read() == HostLoad()


def test_a_system_without_load_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert sampler(monkeypatch).read() == HostLoad()


def test_this_host() -> None:
    host = HostSampler()
    host.read()
    load, iowait, pressure, throttled = host.read()
    assert load is not None
    assert math.isfinite(load)
    assert load >= 0.0
    assert all(one is None or 0.0 <= one <= 1.0 for one in (iowait, pressure, throttled))
    assert hasattr(psutil.cpu_times(), "iowait") or iowait is None
