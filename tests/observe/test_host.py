"""The figures of the host: from psutil, from the control group in a container, or none."""

from __future__ import annotations

import dataclasses
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoglm_throttle.gpu.host import ControlGroup
from autoglm_throttle.observe import host
from autoglm_throttle.observe.host import HostMonitor, HostView
from autoglm_throttle.observe.host_metrics import HOST_METRICS
from autoglm_throttle.observe.metric import PREFIX, MetricsInput
from autoglm_throttle.testing import ManualClock, throttle_for_tests
from tests.gpu.test_control_group import Tree

Linux = namedtuple("Linux", "user nice system idle iowait irq softirq steal guest guest_nice")
Mac = namedtuple("Mac", "user nice system idle")
GIB = 2**30
ZERO = Linux(*[0.0] * 10)


class Psutil:
    """A host whose counters the test moves; as psutil returns them."""

    def __init__(self, core: Any, cores: int = 4) -> None:
        self.cores = [core] * cores
        self.swap = {"sin": 0, "sout": 0}
        self.disk = {"read_bytes": 0, "write_bytes": 0}
        self.network = {"bytes_recv": 0, "bytes_sent": 0}
        self.available = 12 * GIB

    def cpu_times(self, *, percpu: bool) -> list[Any]:
        assert percpu
        return list(self.cores)

    def swap_memory(self) -> object:
        return SimpleNamespace(**self.swap)

    def disk_io_counters(self, *, nowrap: bool) -> object:
        return SimpleNamespace(**self.disk)

    def net_io_counters(self, *, nowrap: bool) -> object:
        return SimpleNamespace(**self.network)

    def virtual_memory(self) -> object:
        return SimpleNamespace(total=16 * GIB, available=self.available)

    def spend(self, core: int, **seconds: float) -> None:
        """Let time pass on one core, by state."""
        times = self.cores[core]
        self.cores[core] = times._replace(**{name: getattr(times, name) + s for name, s in seconds.items()})


class Host:
    """A monitor of a simulated host, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, core: Any = ZERO) -> None:
        self.clock, self.tree, self.psutil = ManualClock(), Tree(folder), Psutil(core)
        monkeypatch.setattr(host, "_psutil", lambda: self.psutil)
        self.stalls_s = dict.fromkeys(host.RESOURCES, 0.0)
        self.stall()
        self.monitor = HostMonitor(self.clock, self.tree.group())
        self.monitor.current()

    def stall(self, **seconds: float) -> None:
        for name in self.stalls_s:
            self.stalls_s[name] += seconds.get(name, 0.0)
            total = round(self.stalls_s[name] * 1e6)
            self.tree.write(f"../proc/pressure/{name}", f"some avg10=0.00 total={total}\n")

    def idle(self, seconds: float = 2.0, cores: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        for core in cores:
            self.psutil.spend(core, idle=seconds)

    def after(self, seconds: float = 2.0) -> HostView:
        self.clock.advance(seconds)
        return self.monitor.current()


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    return Host(monkeypatch, tmp_path)


QUIET = HostView(
    cpu_ratio=0.0,
    cpu_busiest_ratio=0.0,
    iowait_ratio=0.0,
    memory_used_bytes=4 * GIB,
    memory_total_bytes=16 * GIB,
    pressure_ratio={"cpu": 0.0, "io": 0.0, "memory": 0.0},
    swap_bytes_per_second={"in": 0.0, "out": 0.0},
    disk_bytes_per_second={"read": 0.0, "write": 0.0},
    network_bytes_per_second={"receive": 0.0, "transmit": 0.0},
)


def test_first_reading_has_no_rates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    view = Host(monkeypatch, tmp_path).monitor.current()
    assert view == HostView(memory_used_bytes=4 * GIB, memory_total_bytes=16 * GIB)


def test_idle_host_has_zero_and_not_nothing(simulated: Host) -> None:
    simulated.idle()
    assert simulated.after() == QUIET


def test_busy_loop_moves_the_cores_alone(simulated: Host) -> None:
    simulated.idle(cores=(0, 1, 2))
    # A guest's time is within user, too.
    simulated.psutil.spend(3, user=1.5, guest=1.0, system=0.25, idle=0.25)
    assert simulated.after() == dataclasses.replace(QUIET, cpu_ratio=0.21875, cpu_busiest_ratio=0.875)


def test_disk_with_waiting_moves_disk_and_iowait_alone(simulated: Host) -> None:
    for core in range(4):
        simulated.psutil.spend(core, iowait=1.0, idle=1.0)
    simulated.psutil.disk["write_bytes"] += 100
    moved = {"read": 0.0, "write": 50.0}
    assert simulated.after() == dataclasses.replace(QUIET, iowait_ratio=0.5, disk_bytes_per_second=moved)


def test_traffic_swap_and_pressure_move_their_figures_alone(simulated: Host) -> None:
    simulated.idle()
    simulated.psutil.network = {"bytes_recv": 6, "bytes_sent": 4}
    simulated.psutil.swap["sin"] = 8
    simulated.stall(memory=1.0)
    assert simulated.after() == dataclasses.replace(
        QUIET,
        network_bytes_per_second={"receive": 3.0, "transmit": 2.0},
        swap_bytes_per_second={"in": 4.0, "out": 0.0},
        pressure_ratio={"cpu": 0.0, "io": 0.0, "memory": 0.5},
    )


def test_counter_that_falls_has_no_rate(simulated: Host) -> None:
    simulated.psutil.network["bytes_recv"] = 100
    simulated.idle()
    simulated.after()
    simulated.psutil.network["bytes_recv"] = 50
    simulated.idle()
    assert simulated.after().network_bytes_per_second == {"transmit": 0.0}


def test_limits_of_the_group_replace_those_of_the_host(simulated: Host) -> None:
    simulated.idle()
    simulated.tree.limit_memory("a/b/", str(GIB))
    simulated.tree.limit_cpu("a/b/", "50000 100000", periods=10, throttled=0, usage_s=5)
    view = simulated.after()
    assert (view.cpu_ratio, view.cpu_throttled_ratio) == (None, None), "one reading of the group is no rate"
    assert (view.memory_used_bytes, view.memory_total_bytes) == (650, GIB)
    simulated.idle()
    simulated.tree.limit_cpu("a/b/", "50000 100000", periods=30, throttled=15, usage_s=6)
    view = simulated.after()
    assert (view.cpu_ratio, view.cpu_throttled_ratio) == (1.0, 0.75)
    assert view.cpu_busiest_ratio == 0.0
    simulated.tree.limit_cpu("a/b/", "50000 100000", usage_s=1)
    assert simulated.after().cpu_ratio is None, "the group was made anew"


def test_limit_above_the_memory_of_the_host_is_none(simulated: Host) -> None:
    simulated.tree.limit_memory("a/b/", str(64 * GIB))
    simulated.idle()
    assert simulated.after().memory_total_bytes == 16 * GIB


def test_readers_within_a_second_share_a_reading(simulated: Host) -> None:
    simulated.idle()
    assert simulated.after(2.0) is simulated.after(0.9)
    assert simulated.after(0.2) is not simulated.after(1.0)


def test_without_psutil_pressure_and_group_remain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated = Host(monkeypatch, tmp_path)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "psutil", None)
        monitor = HostMonitor(simulated.clock, simulated.tree.group())
    simulated.tree.limit_cpu("a/", "100000 100000", periods=10)
    simulated.tree.limit_memory("a/", str(GIB))
    monitor.current()
    simulated.tree.limit_cpu("a/", "100000 100000", periods=20, throttled=5, usage_s=1)
    simulated.stall(io=1.0)
    simulated.clock.advance(2.0)
    assert monitor.current() == HostView(
        cpu_ratio=0.5,
        cpu_throttled_ratio=0.5,
        memory_used_bytes=650,
        memory_total_bytes=GIB,
        pressure_ratio={"cpu": 0.0, "io": 0.5, "memory": 0.0},
    )


def test_macos_has_no_pressure_and_no_iowait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated = Host(monkeypatch, tmp_path, Mac(*[0.0] * 4))
    monitor = HostMonitor(simulated.clock, ControlGroup(tmp_path / "none", tmp_path / "none"))
    monitor.current()
    for core in range(4):
        simulated.psutil.spend(core, user=1.0, idle=1.0)
    simulated.clock.advance(2.0)
    assert monitor.current() == dataclasses.replace(
        QUIET, cpu_ratio=0.5, cpu_busiest_ratio=0.5, iowait_ratio=None, pressure_ratio={}
    )


def test_functions_that_fail_leave_their_figures_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> object:
        raise NotImplementedError

    simulated = Host(monkeypatch, tmp_path)
    for name in ("cpu_times", "swap_memory", "net_io_counters", "virtual_memory"):
        monkeypatch.setattr(simulated.psutil, name, fail)
    monkeypatch.setattr(simulated.psutil, "disk_io_counters", lambda **_: None)  # a host without disks
    simulated.after()
    assert simulated.after() == HostView(pressure_ratio=QUIET.pressure_ratio)


def test_a_day_has_no_drift(simulated: Host) -> None:
    """All readings of 24 hours have the same figures: nothing is carried from one reading to the next."""
    views = set()
    for _ in range(24 * 6):
        simulated.idle(450.0)
        for core in range(4):
            simulated.psutil.spend(core, user=150.0)
        simulated.psutil.network["bytes_sent"] += 6000
        view = simulated.after(600.0)
        views.add((round(view.cpu_ratio or 0.0, 9), view.network_bytes_per_second["transmit"]))
    assert views == {(0.25, 10.0)}


def test_metrics_are_the_fields_of_the_view() -> None:
    full = dataclasses.replace(QUIET, cpu_throttled_ratio=0.5)
    inputs = MetricsInput(throttle_for_tests().snapshot(), throttle_for_tests().settings, host=full)
    rows = {spec.name.removeprefix(f"{PREFIX}host_"): dict(spec.read(inputs)) for spec in HOST_METRICS}
    assert list(rows) == [one.name for one in dataclasses.fields(HostView)]
    assert rows["cpu_throttled_ratio"] == {(): 0.5}
    assert rows["disk_bytes_per_second"] == {("read",): 0.0, ("write",): 0.0}
    unknown = MetricsInput(inputs.snapshot, inputs.settings, host=HostView())
    assert [list(spec.read(unknown)) for spec in HOST_METRICS] == [[]] * len(HOST_METRICS)


def test_this_host_can_be_read() -> None:
    view = host.host_view()
    assert view.memory_used_bytes is not None
    assert view.memory_total_bytes is not None
    assert 0 < view.memory_used_bytes < view.memory_total_bytes
