"""Who measures time or memory has the machine alone, also where pytest-xdist runs tests side by side.

A test marked ``alone`` waits until no other of this checkout is running, and the others wait for it. Two
locks do it: all pass the door one at a time; the room takes many at once, or one alone. Whoever waits for an
empty room stands in the door, so that nobody else gets in first. The system opens both when a process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

DOOR, ROOM = Path(__file__), Path(__file__).with_name("report.py")


@contextlib.contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Be in the room, with others or alone. What is held is let go aloud: a forked child has it open, too."""
    with ROOM.open() as room:
        with DOOR.open() as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            try:
                fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            finally:
                fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)
