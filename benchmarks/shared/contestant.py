"""What every row is: somebody who is given a server and a limit, and then decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.types import UserLimit
from benchmarks.shared.drive import Hit

SCRIPTS = ("evalsha", "eval")

Opened = contextlib.AbstractAsyncContextManager[Hit]


@dataclass(frozen=True)
class Contestant:
    """One row.

    Args:
        title: what it is called.
        open: makes it for one event loop, with the server's address and the limit of each user.
        sends: the commands that its client sends, which are its round trips; its scripts send none of them.
    """

    title: str
    open: Callable[[str, UserLimit], Opened]
    sends: tuple[str, ...] = SCRIPTS


def per(limit: UserLimit) -> str:
    """The notation of ``limits``."""
    return f"{limit.limit}/{limit.window_s}second"
