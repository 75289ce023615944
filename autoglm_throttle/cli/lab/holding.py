"""Defers Ctrl-C, so that it cannot lose the report of a finished run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from autoglm_throttle.traffic.generator.launch import stopping


class Held:
    """Records a stop request that cannot be executed at once."""

    def __init__(self) -> None:
        self.pressed: bool = False
        """Whether a stop was requested while nothing was being sent."""

    def press(self) -> None:
        """Record the request."""
        self.pressed = True

    def pass_on(self) -> None:
        """Deliver a deferred signal to the sender that runs by now."""
        if self.pressed:
            self.pressed = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def holding() -> Iterator[Held]:
    """Defer Ctrl-C and SIGTERM. A run, which handles them itself, may begin and end meanwhile.

    Without this, a signal between the run's last response and the end of its report would lose the report.
    """
    held = Held()
    with stopping(held.press):
        yield held
