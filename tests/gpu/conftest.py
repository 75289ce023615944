"""Makes the doubles importable, however the tests are started, and hands them out."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.gpu.doubles import Hands, Heard  # noqa: E402 - the path must come first


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def heard() -> Heard:
    return Heard()
