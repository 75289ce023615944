"""Logs lasting errors at a limited rate: each kind once in a while."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

_log = logging.getLogger("autoglm_throttle")

LOG_EVERY_S: Final = 30.0
"""At most one line per kind of error in this time: a missing driver stays missing for long."""


class GpuRateLimitedLogger:
    """Logs a line, or nothing if one of its kind was logged less than 30 s ago.

    Args:
        about: prefix of each line.
        clock: monotonic seconds.
    """

    __slots__ = ("_about", "_clock", "_logged_s")

    def __init__(self, about: str, clock: Clock) -> None:
        self._about = about
        self._clock = clock
        self._logged_s: dict[str, float] = {}

    def warn(self, kind: str, text: str, level: int = logging.WARNING) -> None:
        """Log a line of this kind.

        Args:
            kind: a word from code, never from outside.
            text: the message. Names in it may come from exporters: no character of theirs begins a new line.
            level: as in ``logging``.
        """
        now = self._clock()
        last_s = self._logged_s.get(kind)
        if last_s is None or now - last_s >= LOG_EVERY_S:
            self._logged_s[kind] = now
            plain = "".join(letter if letter.isprintable() else " " for letter in text)
            _log.log(level, "%s: %s", self._about, plain)
