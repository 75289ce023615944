"""Notifications created under a lock and delivered after it: in order, each once, by one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from autoglm_throttle.events import RateLimitedLogger

_OBSERVER_FAILED = "an observer failed; the state change stands"


class NotificationQueue:
    """A queue of notifications to observers and to the store of the fleet.

    One thread drains the queue at a time. Others return at once; the draining thread re-checks the queue
    before it stops.
    """

    __slots__ = ("_fault_log", "_messages", "drain_lock")

    def __init__(self, fault_log: RateLimitedLogger) -> None:
        self._fault_log = fault_log
        self._messages: deque[Callable[[], object]] = deque()
        self.drain_lock: threading.Lock = threading.Lock()
        """Held by the thread that delivers."""

    def put(self, message: Callable[[], object]) -> None:
        """Enqueue a notification for the next delivery; may be called under any lock."""
        self._messages.append(message)

    def deliver(self) -> None:
        """Deliver all queued notifications. An exception is logged and does not affect the others."""
        while self._messages and self.drain_lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self.drain_lock.release()

    def _drain(self) -> None:
        while self._messages:
            message = self._messages.popleft()
            try:
                message()
            except Exception as error:  # noqa: BLE001 - the caller that made the change must not fail
                self._fault_log.warn("observer", _OBSERVER_FAILED, error=error)
