"""Rate-limited log of repeated faults: the first at once, then one line with a count per interval."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock

_log = logging.getLogger("autoglm_throttle")

LOG_EVERY_S: Final = 10.0
"""Seconds between two lines of one kind: under load the same fault repeats with each call."""


class Seldom:
    """Logs a fault, or counts it if one of its kind was logged less than 10 s ago.

    Args:
        prefix: start of each line.
        clock: monotonic seconds.
    """

    __slots__ = ("_about", "_clock", "_said", "count")

    def __init__(self, about: str, clock: Clock) -> None:
        self._about = about
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}
        self.count: int = 0
        """Faults, logged or not."""

    def say(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Log a fault of this kind, with the number of faults suppressed since the last line.

        Args:
            kind: fixed in code, never from outside.
            text: the fault and its consequence.
            error: its traceback is logged.
        """
        now = self._clock()
        self.count += 1
        last_s, since = self._said.get(kind, (-LOG_EVERY_S + now, 0))
        if now - last_s < LOG_EVERY_S:
            self._said[kind] = (last_s, since + 1)
            return
        self._said[kind] = (now, 0)
        more = f" ({since} more since the last line)" if since else ""
        _log.warning("%s: %s%s", self._about, text, more, exc_info=error)
