"""A core for the server and another for the generator, where the system lets a process choose."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def cores() -> tuple[int, int] | None:
    """One for the server, one for the generator; None: there are not two, or the system does not say."""
    if sys.platform == "darwin" or sys.platform == "win32":
        return None
    mine = sorted(os.sched_getaffinity(0))
    return (mine[0], mine[-1]) if len(mine) > 1 else None


def stay_on(core: int | None) -> None:
    """Run on this core alone; None: wherever the system likes."""
    if core is not None and sys.platform != "darwin" and sys.platform != "win32":
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def on(core: int | None) -> Iterator[None]:
    """Run on this core for a while."""
    if core is None or sys.platform == "darwin" or sys.platform == "win32":
        yield
        return
    before = os.sched_getaffinity(0)
    stay_on(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
