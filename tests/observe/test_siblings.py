"""Workers of one service on one host add up their counts."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autoglm_throttle.observe.siblings import (
    ENDED,
    FORGOTTEN_S,
    LOCK,
    STALE_S,
    Counts,
    Labels,
    Siblings,
    folder_of,
)

COUNTERS = ("requests", "durations")


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def worker(folder: Path, process: int | None = None) -> Siblings:
    return Siblings(folder, COUNTERS, os.getpid() if process is None else process)


def share(one: Siblings, now: float, requests: int, active: int = 0) -> None:
    durations: dict[Labels, Counts] = {("high",): (float(requests), 0.0, 0.5 * requests)}
    requested: dict[Labels, Counts] = {("high", "admitted"): (float(requests),), ("low", "shed"): (1.0,)}
    one.exchange(now, {"requests": requested, "durations": durations, "active": {(): (float(active),)}})


def admitted(one: Siblings) -> float:
    return one.totals["requests"]["high", "admitted"][0]


def test_one_worker_has_its_own_counts(tmp_path: Path) -> None:
    one = worker(tmp_path)
    share(one, 10.0, 3, active=2)
    assert one.totals["requests"] == {("high", "admitted"): (3.0,), ("low", "shed"): (1.0,)}
    assert one.totals["durations"] == {("high",): (3.0, 0.0, 1.5)}
    assert one.totals["active"] == {(): (2.0,)}
    assert [(seen.process, seen.age_s, seen.is_stale) for seen in one.workers] == [(os.getpid(), 0.0, False)]


def test_counts_and_gauges_of_all_workers_are_added_up(tmp_path: Path) -> None:
    one, other = worker(tmp_path), worker(tmp_path, os.getppid())
    share(other, 10.0, 40, active=5)
    share(one, 12.0, 3, active=2)
    assert admitted(one) == 43.0
    assert one.totals["durations"] == {("high",): (43.0, 0.0, 21.5)}
    assert one.totals["active"] == {(): (7.0,)}
    ages = {seen.process: seen.age_s for seen in one.workers}
    assert ages == {os.getpid(): 0.0, os.getppid(): 2.0}


def test_increases_are_those_between_two_steps(tmp_path: Path) -> None:
    one = worker(tmp_path)
    share(one, 10.0, 3)
    assert one.workers[0].passed_s == 0.0
    share(one, 15.0, 10)
    (seen,) = one.workers
    assert (seen.passed_s, seen.increases["requests"]["high", "admitted"]) == (5.0, (7.0,))
    assert seen.increases["requests"]["low", "shed"] == (0.0,)
    assert "active" not in seen.increases


@pytest.mark.parametrize(("age_s", "active"), [(STALE_S, 7.0), (STALE_S + 0.1, 2.0)])
def test_a_stale_worker_keeps_its_counts_without_its_load(
    tmp_path: Path, age_s: float, active: float
) -> None:
    one, other = worker(tmp_path), worker(tmp_path, os.getppid())
    share(other, 10.0, 40, active=5)
    share(one, 10.0 + age_s, 3, active=2)
    assert admitted(one) == 43.0
    assert one.totals["active"] == {(): (active,)}
    assert len(one.workers) == 2


def test_counts_of_an_ended_worker_stay(tmp_path: Path) -> None:
    one, ended = worker(tmp_path), worker(tmp_path, ended_process())
    share(ended, 10.0, 40, active=5)
    share(one, 12.0, 3)
    assert len(one.workers) == 1, "it does not live"
    assert len(list(tmp_path.glob("*-*.json"))) == 2, "its load counts until it is stale"
    for now, requests in ((30.0, 4), (35.0, 5), (40.0, 6)):
        share(one, now, requests, active=1)
        assert admitted(one) == 40.0 + requests
        assert one.totals["active"] == {(): (1.0,)}
        assert len(list(tmp_path.glob("*-*.json"))) == 1, "its file is merged"
    # A second one is merged into the same file.
    ended = worker(tmp_path, ended_process())
    share(ended, 50.0, 100)
    for now in (70.0, 75.0):
        share(one, now, 7)
        assert admitted(one) == 147.0
    assert sorted(path.name for path in tmp_path.iterdir())[1:] == [ENDED]


def test_a_merged_file_that_is_still_there_is_not_counted_twice(tmp_path: Path) -> None:
    one, ended = worker(tmp_path), worker(tmp_path, ended_process())
    share(ended, 10.0, 40)
    (path,) = tmp_path.glob("*-*.json")
    kept = path.read_bytes()
    share(one, 30.0, 3)
    path.write_bytes(kept)
    share(one, 35.0, 3)
    assert admitted(one) == 43.0


def test_one_worker_merges_at_a_time(tmp_path: Path) -> None:
    one, ended = worker(tmp_path), worker(tmp_path, ended_process())
    share(ended, 10.0, 40)
    lock = tmp_path / LOCK
    lock.touch()
    share(one, 30.0, 3)
    assert (admitted(one), lock.exists()) == (43.0, True)
    os.utime(lock, (1.0, 1.0))  # its owner has ended amid a merge
    for now in (35.0, 40.0):
        share(one, now, 3)
        assert admitted(one) == 43.0
    assert (lock.exists(), (tmp_path / ENDED).exists()) == (False, True)


def test_a_file_that_vanishes_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(tmp_path)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([one._path, tmp_path / "1-gone.json"]))
    share(one, 10.0, 3)
    assert admitted(one) == 3.0


def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    one = worker(tmp_path)
    (tmp_path / "1-damaged.json").write_text("{")
    share(one, 10.0, 3)
    assert admitted(one) == 3.0


def test_a_worker_that_cannot_write_still_adds_up(tmp_path: Path) -> None:
    one, other = worker(tmp_path), worker(tmp_path, os.getppid())
    share(other, 10.0, 40)
    one._path.mkdir()
    with pytest.raises(OSError, match="directory"):
        share(one, 12.0, 3)
    assert admitted(one) == 43.0


def test_a_process_of_another_user_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, signal: int) -> None:
        raise PermissionError(process, signal)

    one, other = worker(tmp_path), worker(tmp_path, 4242)
    share(other, 10.0, 40)
    monkeypatch.setattr(os, "kill", refuse)
    share(one, 12.0, 3)
    assert [seen.process for seen in one.workers] == sorted([os.getpid(), 4242])


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    one = worker(tmp_path)
    share(one, 10.0, 3)
    share(one, 15.0, 4)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_bytes())["at"] == 15.0


# The folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_workers_of_one_service_have_one_folder(temporary: Path) -> None:
    folder = folder_of("chat/../x")
    assert folder == folder_of("chat/../x") != folder_of("other")
    assert folder.parent.parent == temporary
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_folder_that_others_may_change_is_not_used(temporary: Path, kind: str) -> None:
    base = temporary / f"autoglm_throttle-{os.getuid()}"
    if kind == "open":
        base.mkdir()
        base.chmod(0o777)
    elif kind == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        base.symlink_to(temporary / "elsewhere")
    else:
        base.touch(0o600)
    with pytest.raises(OSError, match="autoglm_throttle-"):
        folder_of("chat")


def test_folders_of_ended_services_are_removed(temporary: Path) -> None:
    base = folder_of("chat").parent
    for name, age_s in (("1-old", FORGOTTEN_S + 60.0), ("1-new", FORGOTTEN_S - 60.0)):
        (base / name).mkdir()
        (base / name / ENDED).touch()
        at = base.stat().st_mtime - age_s
        os.utime(base / name, (at, at))
    folder_of("chat")
    assert {path.name for path in base.iterdir()} == {f"{os.getppid()}-chat", "1-new"}
