"""Keeps Ctrl-C from taking the report of a run that is over."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from autoglm_throttle.traffic.generator.launch import stopping


class Held:
    """What was asked for while it could not be done at once."""

    def __init__(self) -> None:
        self.pressed: bool = False
        """Whether somebody asked to stop while nobody was sending."""

    def press(self) -> None:
        """Note it."""
        self.pressed = True

    def pass_on(self) -> None:
        """Ask whoever is sending by now, if it was asked for before the start."""
        if self.pressed:
            self.pressed = False
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def holding() -> Iterator[Held]:
    """Hold Ctrl-C and SIGTERM back: a run, which handles them itself, may begin and end meanwhile.

    So there is no moment between its last answer and the end of its report at which they would lose it.
    """
    held = Held()
    with stopping(held.press):
        yield held
