"""Log lines about the outages of a store."""

from __future__ import annotations

import math

from autoglm_throttle.events.log_event import LOGGER, plain
from autoglm_throttle.events.rate_limited_logger import LOG_INTERVAL_S


class OutageLog:
    """Logs the loss and the recovery of a store: at most one pair of lines in 30 s.

    Not locked: its owner's lock or thread guards it.

    Args:
        store: the name of the store in the lines.
    """

    __slots__ = ("_is_logged", "_logged_s", "_store", "since_s")

    def __init__(self, store: str) -> None:
        self.since_s: float | None = None
        """Start of the present outage in monotonic seconds; None: the store is available."""
        self._store = store
        self._logged_s = -math.inf
        self._is_logged = False

    def record_loss(self, since_s: float, now: float, effect: str) -> None:
        """Record the begin of an outage. Idempotent.

        Args:
            since_s: the time at which the store was lost.
            now: monotonic seconds.
            effect: the consequence and the cause. Unprintable characters become spaces.
        """
        if self.since_s is not None:
            return
        self.since_s = since_s
        self._is_logged = now - self._logged_s >= LOG_INTERVAL_S
        if self._is_logged:
            self._logged_s = now
            LOGGER.warning("%s is unavailable: %s", self._store, plain(effect))

    def record_recovery(self, now: float, effect: str = "") -> None:
        """Record the end of the outage, and log it if its begin was logged. Idempotent."""
        if self.since_s is not None and self._is_logged:
            LOGGER.warning("%s is available again after %.1f s%s", self._store, now - self.since_s, effect)
        self.since_s = None
