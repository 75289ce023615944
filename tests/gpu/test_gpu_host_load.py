"""The host's load if it is known, else None."""

from __future__ import annotations

import math
import os
import runpy
from collections.abc import Callable
from typing import NamedTuple

import psutil
import pytest

from autoglm_throttle.gpu import host
from autoglm_throttle.gpu.host import HostSampler


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


def read_in_turn(*times: object) -> Callable[[], object]:
    return iter(times).__next__


def average() -> tuple[float, float, float]:
    return (6.0, 1.0, 1.0)


def test_load_is_per_core_and_iowait_since_the_reading_before() -> None:
    first, later = Times(user=100, idle=100, iowait=100), Times(user=150, idle=120, iowait=130, guest=150)
    host = HostSampler(average, 8, read_in_turn(first, later, later, later._replace(user=250)))
    assert host.read() == (0.75, None)
    assert host.read() == (0.75, 0.3)
    assert host.read()[1] is None, "no time has passed"
    assert host.read()[1] == 0.0


def test_falling_counter_is_unknown() -> None:
    host = HostSampler(
        average, 8, read_in_turn(Times(100, idle=100, iowait=100), Times(190, idle=100, iowait=90))
    )
    assert [host.read()[1], host.read()[1]] == [None, None]


def test_system_without_iowait_is_unknown() -> None:
    host = HostSampler(average, 8, read_in_turn(None, (1.0, 2.0), None))
    assert [host.read()[1] for _ in range(3)] == [None] * 3


def test_without_psutil_iowait_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_cpu_times_of_psutil", lambda: None)
    sampler = HostSampler(average, 8)
    assert [sampler.read(), sampler.read()] == [(0.75, None)] * 2


def test_host_without_figures_is_unknown() -> None:
    def rejects() -> tuple[float, float, float]:
        raise OSError("load average is unobtainable")

    host = HostSampler(rejects, 8, lambda: None)
    assert [host.read(), host.read()] == [(None, None)] * 2


def test_unknown_core_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert HostSampler(average, cpu_times=lambda: None).read() == (None, None)


def test_a_system_without_load_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    afresh = runpy.run_path(host.__file__)["HostSampler"]
    assert afresh(cores=8, cpu_times=lambda: None).read() == (None, None)


def test_this_host() -> None:
    host = HostSampler()
    host.read()
    load, iowait = host.read()
    assert load is not None
    assert math.isfinite(load)
    assert load >= 0.0
    assert iowait is None or 0.0 <= iowait <= 1.0
    assert hasattr(psutil.cpu_times(), "iowait") or iowait is None
