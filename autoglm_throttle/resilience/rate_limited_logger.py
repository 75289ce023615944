"""Rate-limited log of repeated faults: the first at once, then one line with a count per interval."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autoglm_throttle.types import Clock

_log = logging.getLogger("autoglm_throttle")

LOG_INTERVAL_S: Final = 10.0
"""Seconds between two lines of one kind: under load the same fault repeats with each call."""


class GuardRateLimitedLogger:
    """Logs a fault, or counts it if one of its kind was logged less than 10 s ago.

    Args:
        prefix: start of each line.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_last_logged", "_prefix", "fault_count")

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._last_logged: dict[str, tuple[float, int]] = {}
        self.fault_count: int = 0
        """Faults, logged or not."""

    def warn(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Log a fault of this kind, with the number of faults suppressed since the last line.

        Args:
            kind: fixed in code, never from outside.
            text: the fault and its consequence.
            error: its traceback is logged.
        """
        now = self._clock()
        self.fault_count += 1
        last_s, suppressed = self._last_logged.get(kind, (-LOG_INTERVAL_S + now, 0))
        if now - last_s < LOG_INTERVAL_S:
            self._last_logged[kind] = (last_s, suppressed + 1)
            return
        self._last_logged[kind] = (now, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        _log.warning("%s: %s%s", self._prefix, text, more, exc_info=error)
