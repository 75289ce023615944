"""Equal loads and seeds give equal bytes with any hash seed of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traffic.inproc.throttled_trace import ROWS, digest, play, write_trace

ROOT = Path(__file__).parents[3]


def played(path: Path, seed: int, hash_seed: str) -> tuple[str, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.traffic.inproc.throttled_trace", str(path), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    digest, _, counts = done.stdout.partition(" ")
    return digest, json.loads(counts)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    write_trace(path, 3)
    return path


@pytest.mark.slow
def test_two_processes_decide_alike_to_the_last_byte(trace: Path) -> None:
    first, counts = played(trace, 7, "1")
    second, _ = played(trace, 7, "2")
    other = digest(play(trace, 8))
    assert first == second
    assert first != other
    assert sum(counts.values()) == ROWS
    assert counts["ok"] > 0 < counts["limited"]
    assert counts["connection"] > 0
