"""The report of attacks: one line for each, whichever process of pytest-xdist has tried it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_several(attack, number):
    with attack("first: three cases"):
        assert number < 2

def test_degraded(attack):
    with attack("second: a trade", degraded="a reason"):
        pass

@pytest.mark.xfail
def test_known(attack):
    with attack("third: known"):
        raise ValueError

def test_skipped(attack):
    with attack("fourth: skipped"):
        pytest.skip("not here")

def test_held(attack):
    with attack("fifth: held", times=20):
        pass
"""
LINES = """\
fifth: held [20] - held
first: three cases [3] - broken (1 of 3)
second: a trade [1] - degraded by design: a reason
third: known [1] - broken
4 attacks in 25 cases: 1 held, 1 degraded by design, 2 broken
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one", "two"])
def test_report_of_attacks_has_one_line_each(tmp_path: Path, processes: tuple[str, ...]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.hostile.attacks"]\n')
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *processes, str(tmp_path), "--rootdir", str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert LINES in run.stdout, run.stdout + run.stderr
