"""No test depends on how long the machine has been on: `make test-all` runs each on a young one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.project.wheel import ROOT

PLUGIN = "tests.project.young_machine"
"""Never imported here: it changes the clock of the process."""
MODULE = """
import asyncio, sys, time

async def times():
    return time.monotonic(), time.monotonic_ns() / 1e9, asyncio.get_running_loop().time()

def test_the_machine_was_started_a_minute_ago():
    told = asyncio.run(times())
    assert all(60.0 <= each < 90.0 for each in told), told
    sys.modules["PLUGIN"].UPTIME.began_ns -= 1000 * 10**9
"""


def test_the_clock_begins_a_minute_after_the_start_in_each_module(tmp_path: Path) -> None:
    """That of an event loop, too."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(MODULE.replace("PLUGIN", PLUGIN))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    command = ["-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path)],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_full_tier_runs_on_a_young_machine() -> None:
    (line,) = [one for one in (ROOT / "Makefile").read_text().splitlines() if "coverage_report" in one]
    assert f"-p {PLUGIN}" in line
