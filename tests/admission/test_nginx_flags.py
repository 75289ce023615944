"""The writer of the flags of an nginx second tier: the tier of a factor, the lock, faults of the folder."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle import Demand, Permit, Settings, Throttle
from autoglm_throttle.admission.nginx_flags import (
    FOLLOW_S,
    WAIT_S,
    NginxFlags,
    folder_fault,
    tier_factors,
    tier_name,
)
from autoglm_throttle.testing import ManualClock
from tests.admission.forked import forked
from tests.store.polling import HANG_S, until

TIERS = tier_factors(Settings())
BROKEN = -1.0
"""A factor that cannot be read."""


class Writer:
    """Flags with a factor that the test sets."""

    def __init__(self, folder: Path, owner: str = "chat") -> None:
        self.factor: float | None = 1.0
        self.faults: list[None] = []
        self.clock = ManualClock()
        self.flags = NginxFlags(
            folder, TIERS, self._factor, lambda: self.faults.append(None), owner, self.clock
        )

    def _factor(self) -> float | None:
        if self.factor == BROKEN:
            raise LookupError("no factor")
        return self.factor

    def at(self, factor: float | None) -> float | None:
        """One step at a factor."""
        self.factor = factor
        return self.flags.step()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Writer]]:
    made: list[Writer] = []

    def writer() -> Writer:
        made.append(Writer(tmp_path / "flags"))
        return made[-1]

    yield writer
    for one in made:
        one.flags.leave_lock()


def flags_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"lock"}


@pytest.mark.parametrize(
    ("factor", "flag"),
    [
        (1.0, set()),
        (0.99, set()),
        (0.71, set()),
        (0.7, {"tier70"}),
        (0.7000000001, {"tier70"}),
        (0.41, {"tier70"}),
        (0.4, {"tier40"}),
        (0.001, {"tier40"}),
        (0.0, {"tier0"}),
    ],
)
def test_tier_is_the_lowest_at_or_above_the_factor(
    make: Callable[[], Writer], tmp_path: Path, factor: float, flag: set[str]
) -> None:
    assert make().at(factor) == FOLLOW_S
    assert flags_in(tmp_path / "flags") == flag


def test_names_and_factors_follow_the_policy() -> None:
    assert [tier_name(each) for each in TIERS] == ["100", "70", "40", "0"]
    assert tier_name(0.333) == "33_3"
    assert tier_factors(Settings(policy="fixed")) == [1.0]
    assert tier_factors(Settings(policy="tiers", tiers="50:1,60:0.5")) == [1.0, 0.5]


def test_new_flag_exists_before_another_is_removed(
    make: Callable[[], Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, folder, seen = make(), tmp_path / "flags", []
    remove = Path.unlink

    def observed(path: Path, missing_ok: bool = False) -> None:
        seen.append(flags_in(folder))
        remove(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", observed)
    for factor in (0.7, 0.0, 0.4, 1.0):
        writer.at(factor)
    assert seen == [{"tier70", "tier0"}, {"tier0", "tier40"}, {"tier40"}]


def test_folder_is_made_for_other_users_whatever_the_umask(
    make: Callable[[], Writer], tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        make().at(0.4)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "flags").stat().st_mode) == 0o755


def test_flags_of_an_earlier_run_are_removed(make: Callable[[], Writer], tmp_path: Path) -> None:
    folder = tmp_path / "flags"
    folder.mkdir()
    for name in ("tier0", "tier55_5", "tiers", "other"):
        (folder / name).touch()
    make().at(0.7)
    assert flags_in(folder) == {"tier70", "tiers", "other"}


def test_one_process_writes_and_the_next_takes_over(make: Callable[[], Writer], tmp_path: Path) -> None:
    first, second = make(), make()
    assert (first.at(0.0), second.at(1.0)) == (FOLLOW_S, WAIT_S)
    assert flags_in(tmp_path / "flags") == {"tier0"}
    first.flags.leave_lock()  # as the kernel does at the end of a process
    assert (second.at(1.0), first.at(0.4)) == (FOLLOW_S, WAIT_S)
    assert flags_in(tmp_path / "flags") == set()


def test_writer_locks_anew_after_its_folder_was_removed(make: Callable[[], Writer], tmp_path: Path) -> None:
    first, second, folder = make(), make(), tmp_path / "flags"
    first.at(0.0)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert second.at(0.7) == FOLLOW_S
    assert first.at(0.0) == WAIT_S
    assert flags_in(folder) == {"tier70"}


def test_thread_ends_with_its_owner(make: Callable[[], Writer]) -> None:
    assert make().at(None) is None


def test_missing_parent_is_logged_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(tmp_path / "missing" / "flags")
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        assert [writer.at(0.4) for _ in range(3)] == [WAIT_S] * 3
    assert len(writer.faults) == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("nginx flags: ")
    assert "missing" in line
    (tmp_path / "missing").mkdir()
    assert writer.at(0.4) == FOLLOW_S
    writer.flags.leave_lock()


def test_folder_without_locks_is_a_fault(make: Callable[[], Writer], monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    writer = make()
    assert (writer.at(0.4), len(writer.faults)) == (WAIT_S, 1)


@pytest.mark.parametrize(
    ("before", "wanted", "left"),
    [(0.0, 0.4, set()), (0.0, 0.7, set()), (0.7, 0.4, {"tier70"}), (0.7, 0.0, {"tier70"})],
)
def test_full_disk_leaves_no_lower_tier_in_force(
    make: Callable[[], Writer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: float,
    wanted: float,
    left: set[str],
) -> None:
    writer = make()
    writer.at(before)

    def full(path: Path, mode: int = 0o666, exist_ok: bool = True) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", full)
        assert writer.at(wanted) == WAIT_S
    assert (flags_in(tmp_path / "flags"), len(writer.faults)) == (left, 1)
    assert writer.at(wanted) == FOLLOW_S
    assert flags_in(tmp_path / "flags") == {f"tier{tier_name(wanted)}"}


def test_fault_of_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    assert folder_fault(tmp_path) == folder_fault(tmp_path / "new") == ""
    assert "is no folder" in folder_fault(file)
    assert "cannot be made" in folder_fault(tmp_path / "a" / "b")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "is not writable" in folder_fault(tmp_path)


def throttle(folder: Path, **settings: Any) -> tuple[Throttle, Path]:
    """A throttle whose GPU is a file; it acts at the first sample."""
    gpu = folder / "gpu.csv"
    gpu.write_text("index,utilization_pct\n0,97\n")
    values: dict[str, Any] = {"gpu": f"fake:{gpu}", "policy": "tiers", "tier_samples": 1}
    values |= {"sample_interval_s": 0.2, "nginx_flags_dir": str(folder / "flags")}
    return Throttle(Settings.from_env({}, **{**values, **settings})), gpu


def test_flags_follow_the_throttle_and_end_with_it(tmp_path: Path) -> None:
    service, gpu = throttle(tmp_path)
    folder = tmp_path / "flags"
    service.start()
    until(lambda: flags_in(folder) == {"tier0"}, HANG_S, "the tier of 97 %")
    gpu.write_text("index,utilization_pct\n0,92.5\n")
    until(lambda: flags_in(folder) == {"tier40"}, HANG_S, "the tier of 92.5 %")
    service.stop()
    until(lambda: not flags_in(folder), HANG_S, "no flag after the stop")
    service.start()
    until(lambda: flags_in(folder) == {"tier40"}, HANG_S, "the tier after another start")
    service.stop()


def test_dry_run_lowers_no_tier(tmp_path: Path) -> None:
    service, _ = throttle(tmp_path, dry_run=True)
    service.control.monitor.tick()
    assert service.control_state().factor == 0.0
    assert service.control.factor_for_nginx() == 1.0


def test_fault_of_the_folder_is_an_oddity(tmp_path: Path) -> None:
    service, _ = throttle(tmp_path, nginx_flags_dir=str(tmp_path / "a" / "b"))
    assert service.control.nginx_flags is not None
    service.control.nginx_flags.step()
    assert service.snapshot().oddities["nginx_flags"] == 1


@pytest.mark.parametrize(("pct", "factor", "times"), [(97, 0.0, 1), (5, 1.0, 0)])
def test_crashed_samplers_are_restarted_at_a_low_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pct: int, factor: float, times: int
) -> None:
    service, gpu = throttle(tmp_path)
    gpu.write_text(f"index,utilization_pct\n0,{pct}\n")
    control, woken = service.control, list[float]()
    monkeypatch.setattr(control.monitor, "wake", woken.append)
    control.monitor.tick()
    assert (control.factor_for_nginx(), len(woken)) == (factor, times)


def test_folder_that_hangs_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(flags: NginxFlags, tier: float) -> None:
        entered.set()
        leave.wait()

    monkeypatch.setattr(NginxFlags, "_write", hang)
    service, _ = throttle(tmp_path, policy="adaptive")
    service.start()
    try:
        assert entered.wait(HANG_S)
        assert isinstance(service.try_admit(Demand()), Permit)
        assert service.snapshot().oddities["nginx_flags"] == 0
        service.stop()
        assert not leave.is_set(), "start, admission and stop return while the folder hangs"
    finally:
        leave.set()


def test_lock_is_no_link_to_another_file(make: Callable[[], Writer], tmp_path: Path) -> None:
    folder, victim = tmp_path / "flags", tmp_path / "victim"
    folder.mkdir()
    (folder / "lock").symlink_to(victim)
    writer = make()
    assert (writer.at(0.4), len(writer.faults)) == (WAIT_S, 1)
    assert not victim.exists()


def test_manual_throttle_writes_no_flags(tmp_path: Path) -> None:
    settings = Settings(nginx_flags_dir=str(tmp_path / "flags"), gpu="none")
    assert Throttle(settings, sampling="manual").control.nginx_flags is None


@contextlib.contextmanager
def living_child() -> Iterator[None]:
    """A forked child that has built its parts anew, and lives as long as the block runs."""
    (reader, end), (ready, start) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        os.write(start, b"1")
        os.read(reader, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        yield
    finally:
        for descriptor in (end, reader, ready, start):
            os.close(descriptor)
        os.waitpid(pid, 0)


def test_forked_child_does_not_keep_the_lock(make: Callable[[], Writer], tmp_path: Path) -> None:
    service, _ = throttle(tmp_path)
    flags = service.control.nginx_flags
    assert flags is not None
    service.control.monitor.tick()
    assert flags.step() == FOLLOW_S

    def child() -> None:
        own = service.control.nginx_flags
        assert own is not None
        assert own is not flags
        assert own.step() == WAIT_S, "the parent lives"
        flags.leave_lock()  # closes nothing: the child has no descriptor of the lock

    forked(child)
    with living_child():
        flags.leave_lock()
        assert make().at(0.7) == FOLLOW_S, "a child lives that was forked while the lock was held"


def test_a_crash_removes_the_flags_and_is_told(
    make: Callable[[], Writer], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    writer = make()
    writer.factor = 0.0
    writer.flags.start()
    try:
        until(lambda: flags_in(tmp_path / "flags") == {"tier0"}, HANG_S, "the flag of tier 0")
        writer.factor = BROKEN
        until(lambda: bool(writer.faults), HANG_S, "the fault")
        until(lambda: not flags_in(tmp_path / "flags"), HANG_S, "no flag")
        assert "the tier in force cannot be written: LookupError: no factor" in caplog.text
        writer.factor = 0.4
        writer.clock.advance(60.0)
        writer.flags.restart_if_dead(writer.clock())
        until(lambda: flags_in(tmp_path / "flags") == {"tier40"}, HANG_S, "the flag of tier 40")
    finally:
        writer.flags.stop()


def test_two_services_in_one_folder_notice_it(
    make: Callable[[], Writer], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert make().at(0.4) == FOLLOW_S
    same, other = make(), Writer(tmp_path / "flags", "images")
    assert same.at(0.0) == other.at(0.0) == WAIT_S
    assert (len(same.faults), len(other.faults)) == (0, 1)
    assert "another service writes its tiers there: 'chat'" in caplog.text
    assert flags_in(tmp_path / "flags") == {"tier40"}


@pytest.mark.parametrize(
    ("factor", "name"), [(1.0, "100"), (0.7, "70"), (0.333, "33_3"), (1e-7, "0_00001"), (0.0, "0")]
)
def test_tier_name_is_one_of_nginx(factor: float, name: str) -> None:
    assert tier_name(factor) == name
