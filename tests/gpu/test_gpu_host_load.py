"""The host's load if it is known, else None."""

from __future__ import annotations

import math
import os
import runpy
from pathlib import Path

import pytest

from autoglm_throttle.gpu import host
from autoglm_throttle.gpu.host import STAT, HostSampler, HostStats


def times(user: int, idle: int, iowait: int) -> str:
    return f"cpu  {user} 0 0 {idle} {iowait} 0 0 0 0 0\ncpu0 1 2 3 4 5\n"


def average() -> tuple[float, float, float]:
    return (6.0, 1.0, 1.0)


def test_load_is_per_core_and_iowait_since_the_reading_before(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    host = HostSampler(average, 8, stat)
    stat.write_text(times(100, 100, 100))
    assert host.read() == HostStats(0.75, None)
    stat.write_text(times(150, 120, 130))
    assert host.read() == HostStats(0.75, 0.3)
    assert host.read().iowait is None, "no time has passed"
    stat.write_text(times(250, 120, 130))
    assert host.read().iowait == 0.0


def test_falling_counter_is_unknown(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    host = HostSampler(average, 8, stat)
    for text in (times(100, 100, 100), times(190, 100, 90)):
        stat.write_text(text)
        seen = host.read()
    assert seen.iowait is None


@pytest.mark.parametrize(
    "text", ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n", "cpu \xff\n"]
)
def test_malformed_table_is_unknown(tmp_path: Path, text: str) -> None:
    stat = tmp_path / "stat"
    stat.write_text(text, encoding="latin-1")
    host = HostSampler(average, 8, stat)
    assert [host.read().iowait, host.read().iowait] == [None, None]


def test_host_without_figures_is_unknown(tmp_path: Path) -> None:
    def rejects() -> tuple[float, float, float]:
        raise OSError("load average is unobtainable")

    host = HostSampler(rejects, 8, tmp_path / "absent")
    assert [host.read(), host.read()] == [HostStats(None, None)] * 2


def test_unknown_core_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert HostSampler(average, stat=tmp_path / "absent").read() == HostStats(None, None)


def test_a_system_without_load_averages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "getloadavg")
    afresh = runpy.run_path(host.__file__)["HostSampler"]
    assert afresh(cores=8, stat=tmp_path / "absent").read() == (None, None)


def test_this_host() -> None:
    host = HostSampler()
    host.read()
    load, iowait = host.read()
    assert load is not None
    assert math.isfinite(load)
    assert load >= 0.0
    assert iowait is None or 0.0 <= iowait <= 1.0
    assert STAT.exists() or iowait is None
