"""Rate-limited log of repeated faults."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from autoglm_throttle.events.log_event import LOGGER, plain

LOG_INTERVAL_S: Final = 30.0
"""Seconds between two lines of one kind: under load a fault repeats with each call, and a missing driver is
missing for long.
"""


class RateLimitedLogger:
    """Logs the first fault of a kind at once, then one line in each interval, with the number left out.

    Args:
        prefix: start of each line.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_last", "_prefix")

    def __init__(self, prefix: str, clock: Callable[[], float]) -> None:
        self._prefix = prefix
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}
        """Kind -> time of its last line, and the faults since then."""

    def warn(
        self, kind: str, text: str, *, error: BaseException | None = None, level: int = logging.WARNING
    ) -> None:
        """Log a fault, or count it if one of its kind was logged less than the interval ago.

        Args:
            kind: fixed in code, never from outside.
            text: the fault and its consequence. Unprintable characters become spaces.
            error: its traceback is logged.
            level: as in ``logging``.
        """
        now = self._clock()
        last_s, suppressed = self._last.get(kind, (now - LOG_INTERVAL_S, 0))
        if now - last_s < LOG_INTERVAL_S:
            self._last[kind] = (last_s, suppressed + 1)
            return
        self._last[kind] = (now, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        LOGGER.log(level, "%s: %s%s", self._prefix, plain(text), more, exc_info=error)
