"""No test depends on how long the machine has been on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.project.wheel import ROOT

pytestmark = pytest.mark.slow

PLUGIN = "tests.project.young_machine"
"""Never imported here: it changes the clock of the process."""
STARTED_S = 60
CLOCKS = f"""
import asyncio, time
import {PLUGIN}

async def main():
    print(time.monotonic(), time.monotonic_ns() / 1e9, asyncio.get_running_loop().time())

asyncio.run(main())
"""


def environ() -> dict[str, str]:
    """Return an environment without the traces of the run that this test belongs to."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    return kept | {"HYPOTHESIS_PROFILE": "fast", "PYTHONPATH": str(ROOT)}


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


def test_the_clock_begins_a_minute_after_the_start() -> None:
    """That of an event loop, too."""
    told = run("-c", CLOCKS)
    assert all(STARTED_S <= float(word) < STARTED_S + 30 for word in told.split())


@pytest.mark.parametrize("folder", ["testing", "admission", "gpu", "asgi"])
def test_a_folder_passes_on_a_machine_that_was_just_started(folder: str) -> None:
    command = ("-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "-m", "not slow")
    assert " passed" in run(*command, f"tests/{folder}").splitlines()[-1]
