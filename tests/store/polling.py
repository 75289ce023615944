"""Waiting for what a real server does in its own time, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.store.resp import ReplyError


def until(true: Callable[[], object], within_s: float, what: str) -> None:
    """Ask every 10 ms; a server that does not answer (yet) counts as no.

    Raises:
        AssertionError: it did not come true in time.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except (OSError, ReplyError):
            pass
        time.sleep(0.01)
    raise AssertionError(f"not within {within_s} s: {what}")
