"""One log line, and who writes it."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

LOGGER = logging.getLogger("autoglm_throttle")
"""Without a handler of the application's own, Python shows its warnings on standard error:
a limiter that fails silently is worse than one that speaks."""


@dataclass(frozen=True, slots=True)
class Line:
    """One log line: an event name, a level, a sentence and flat keys."""

    event: str
    level: int
    text: str
    keys: dict[str, object]

    def write(self) -> None:
        """Hand the line to the logger ``autoglm_throttle``; one that raises loses only the line."""
        with contextlib.suppress(Exception):
            LOGGER.log(self.level, self.text, extra={"event": self.event, **self.keys})


def plain(text: str) -> str:
    """Text from outside in one line: names come from exporters, and none may begin a line of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
