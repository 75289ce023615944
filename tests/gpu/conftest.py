"""Makes the doubles importable, however the tests are started, and hands them out."""

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
    """Remember which samplers of other tests still run."""
    OLDER.clear()
    OLDER.update(threading.enumerate())
