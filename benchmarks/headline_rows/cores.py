"""A core for the server and another for the generator, on systems with CPU affinity."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def cores() -> tuple[int, int] | None:
    """Return a core for the server and one for the generator; None: fewer than two, or unknown."""
    if sys.platform == "darwin" or sys.platform == "win32":
        return None
    mine = sorted(os.sched_getaffinity(0))
    return (mine[0], mine[-1]) if len(mine) > 1 else None


def stay_on(core: int | None) -> None:
    """Pin the process to this core; None: no pinning."""
    if core is not None and sys.platform != "darwin" and sys.platform != "win32":
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def on(core: int | None) -> Iterator[None]:
    """Pin the process to this core inside the block."""
    if core is None or sys.platform == "darwin" or sys.platform == "win32":
        yield
        return
    before = os.sched_getaffinity(0)
    stay_on(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
