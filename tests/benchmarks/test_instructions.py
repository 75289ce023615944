"""The benchmark of instructions: its arithmetic, its message without valgrind, its driver."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.callgrind import ROOT
from benchmarks.instructions_driver import ATTACHMENTS, REQUESTS, STATES

pytestmark = pytest.mark.slow

CASES = 1 + len(ATTACHMENTS)
PROFILES = 1 + 2 * CASES * len(STATES)


def test_bare_app_is_subtracted_from_each_attachment() -> None:
    counts = [0] * PROFILES
    measured = iter([10, 20, 110, 220, 310, 420, 510, 620, 710, 820])
    for at in range(2, PROFILES, 2):
        counts[at] = next(measured) * REQUESTS
    figures = instructions.per_request(counts)
    assert figures["none"] == {"fresh": 100, "steady": 200}
    assert figures["header"] == {"fresh": 700, "steady": 800}
    assert list(figures) == list(ATTACHMENTS)


def test_missing_profile_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=f"{PROFILES - 1} profiles, {PROFILES} expected"):
        instructions.per_request([0] * (PROFILES - 1))


def test_table_shows_the_ratio_to_the_other_commit() -> None:
    now = {"none": {"fresh": 110, "steady": 200}}
    before = {"none": {"fresh": 100, "steady": 200}}
    lines = instructions.table(now, before).splitlines()
    assert lines[1].split() == ["none,", "fresh", "110", "100", "1.100"]
    assert instructions.table(now, None).splitlines()[2].split() == ["none,", "steady", "200"]


def test_run_without_valgrind_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["instructions"])
    assert instructions.main() == 1
    assert "valgrind is not installed" in capsys.readouterr().err


def test_driver_answers_every_request(tmp_path: Path) -> None:
    """A status other than 200 ends the driver with an error."""
    done = subprocess.run(
        [sys.executable, "-P", str(instructions.DRIVER)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
