"""The log event, and the logger of the package."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

LOGGER = logging.getLogger("autoglm_throttle")
"""Without a handler of the application, Python prints its warnings to standard error:
a limiter must not fail silently.
"""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log event: an event name, a level, a sentence and flat keys."""

    event: str
    level: int
    text: str
    keys: dict[str, object]

    def write(self) -> None:
        """Pass the event to the logger ``autoglm_throttle``; a handler's exception loses only this event."""
        # A broken log handler must not fail a request.
        with contextlib.suppress(Exception):
            LOGGER.log(self.level, self.text, extra={"event": self.event, **self.keys})


def plain(text: str) -> str:
    """Replace unprintable characters: a name from an exporter must not begin a log line of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
