"""A measured library: opened with a server and a limit, then asked for decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.types import UserLimit
from benchmarks.shared.drive import Hit

SCRIPTS = ("evalsha", "eval")

Opened = contextlib.AbstractAsyncContextManager[Hit]


@dataclass(frozen=True)
class Candidate:
    """One measured library or configuration.

    Args:
        title: its name in tables.
        open: opens it on one event loop, with the address of the server and the limit of each user.
        sends: commands of its client, which are its round trips; scripts send none of them.
    """

    title: str
    open: Callable[[str, UserLimit], Opened]
    sends: tuple[str, ...] = SCRIPTS


def per(limit: UserLimit) -> str:
    """Format a limit in the notation of ``limits``."""
    return f"{limit.limit}/{limit.window_s}second"
