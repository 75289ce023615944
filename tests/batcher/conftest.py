"""A batcher in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from autoglm_throttle.batcher import AdaptiveBatcher
from autoglm_throttle.traffic.inproc.loop import VirtualLoop
from tests.batcher.engine import Make, Run


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    loop.limit(1000.0, "the test")
    yield loop
    loop.close()


@pytest.fixture
def run(loop: VirtualLoop) -> Run:
    return loop.run_until_complete


@pytest.fixture
def make(loop: VirtualLoop) -> Make:
    return functools.partial(AdaptiveBatcher, slo_s=10.0, clock=loop.clock)
