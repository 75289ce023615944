"""Fixtures of the sampler doubles, importable from any working directory."""

import sys
import threading
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.gpu.sampler_doubles import OLDER, SampleRecorder, StepClock  # noqa: E402 - the path must come first


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def listener() -> SampleRecorder:
    return SampleRecorder()


@pytest.fixture(autouse=True)
def older_threads() -> None:
    """Record the samplers of other tests that still run."""
    OLDER.clear()
    OLDER.update(threading.enumerate())
