"""The limits of the control group, read from a tree of files as the kernel makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoglm_throttle.gpu import host
from autoglm_throttle.gpu.host import (
    ControlGroup,
    CpuQuota,
    HostSampler,
    PressureStall,
    throttled_share,
)

STALLS = "some avg10=12.50 avg60=11.30 avg300=16.09 total=3500000\nfull avg10=0.00 total=0\n"
MEMORY = {"memory.current": "900\n", "memory.stat": "anon 600\nfile 300\ninactive_file 250\n"}


class Tree:
    """The folders ``cgroup`` and ``proc`` of a host with a group ``/a/b``."""

    def __init__(self, folder: Path, own: str = "0::/a/b\n") -> None:
        self.root, self.proc = folder / "cgroup", folder / "proc"
        self.write("cgroup.controllers", "cpu io memory\n")
        (self.root / "a" / "b").mkdir(parents=True)
        self.write("../proc/self/cgroup", own)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def limit_cpu(
        self, group: str, most: str, periods: int = 0, throttled: int = 0, usage_s: int = 0
    ) -> None:
        self.write(f"{group}cpu.max", f"{most}\n")
        counts = f"usage_usec {usage_s * 10**6}\nnr_periods {periods}\nnr_throttled {throttled}\n"
        self.write(f"{group}cpu.stat", counts)

    def limit_memory(self, group: str, most: str) -> None:
        self.write(f"{group}memory.max", f"{most}\n")
        for name, text in MEMORY.items():
            self.write(group + name, text)

    def group(self) -> ControlGroup:
        return ControlGroup(self.root, self.proc)


def test_tightest_cpu_limit_of_all_groups_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.limit_cpu("a/b/", "max 100000")
    assert tree.group().cpu() is None
    tree.limit_cpu("a/", "250000 100000", periods=40, throttled=10, usage_s=7)
    assert tree.group().cpu() == CpuQuota(2.5, 7.0, 40, 10)
    tree.limit_cpu("a/b/", "50000 100000", periods=20, throttled=3, usage_s=2)
    assert tree.group().cpu() == CpuQuota(0.5, 2.0, 20, 3)


def test_memory_of_the_group_with_least_left_without_file_pages(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.group().memory() is None
    tree.limit_memory("a/b/", "max")
    assert tree.group().memory() is None
    tree.limit_memory("a/b/", "5000")
    tree.limit_memory("a/", "1000")
    assert tree.group().memory() == (650, 1000)


def test_pressure_is_that_of_the_group_else_of_the_host(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tree.group().pressure("cpu") is None
    tree.write("../proc/pressure/cpu", STALLS.replace("12.50", "80.00"))
    assert tree.group().pressure("cpu") == PressureStall(0.8, 3.5)
    tree.write("a/b/cpu.pressure", STALLS)
    assert tree.group().pressure("cpu") == PressureStall(0.125, 3.5)
    assert tree.group().pressure("memory") is None


@pytest.mark.parametrize("text", ["", "some\n", "some avg10=x total=1\n", "some avg10\n"])
def test_unreadable_pressure_is_unknown(tmp_path: Path, text: str) -> None:
    tree = Tree(tmp_path)
    tree.write("a/b/cpu.pressure", text)
    assert tree.group().pressure("cpu") is None


@pytest.mark.parametrize("text", ["", "max\n", "none 100000\n"])
def test_unreadable_limit_is_none(tmp_path: Path, text: str) -> None:
    tree = Tree(tmp_path)
    tree.limit_cpu("a/b/", "50000 100000")
    tree.write("a/b/cpu.max", text)
    assert tree.group().cpu() is None


def test_container_without_own_namespace_has_its_group_at_the_root(tmp_path: Path) -> None:
    tree = Tree(tmp_path, own="0::/kubepods/pod1/container\n")
    tree.limit_cpu("", "200000 100000")
    assert tree.group().cpu() == CpuQuota(2.0, 0.0, 0, 0)


def test_cgroup_version_1_has_no_limits_here(tmp_path: Path) -> None:
    tree = Tree(tmp_path, own="3:cpu:/\n0::/\n")
    (tree.root / "cgroup.controllers").unlink()
    tree.limit_cpu("", "200000 100000")
    assert tree.group().cpu() is None


def test_host_without_these_files_is_unknown(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path / "none", tmp_path / "none")
    assert (group.cpu(), group.memory(), group.pressure("cpu")) == (None, None, None)


@pytest.mark.parametrize(
    ("last", "now", "share"),
    [
        (None, CpuQuota(1, 1, 10, 5), None),
        (CpuQuota(1, 1, 10, 5), None, None),
        (CpuQuota(1, 1, 10, 5), CpuQuota(1, 1, 10, 5), 0.0),
        (CpuQuota(1, 1, 10, 5), CpuQuota(1, 2, 30, 20), 0.75),
        (CpuQuota(1, 1, 10, 5), CpuQuota(1, 1, 2, 1), None),
    ],
)
def test_throttled_share_of_the_periods(last: CpuQuota | None, now: CpuQuota | None, share: object) -> None:
    assert throttled_share(last, now) == share


def test_sampler_reads_pressure_and_throttling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_cpu_times_of_psutil", lambda: None)
    tree = Tree(tmp_path)
    tree.write("a/b/cpu.pressure", STALLS)
    tree.limit_cpu("a/b/", "50000 100000", periods=20, throttled=3)
    sampler = HostSampler(tree.group())
    assert sampler.read()[1:] == (None, 0.125, None)
    tree.limit_cpu("a/b/", "50000 100000", periods=30, throttled=12)
    assert sampler.read()[1:] == (None, 0.125, 0.9)
