"""Notifications created under a lock and delivered after it: in order, each once, by one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from autoglm_throttle.resilience.seldom import Seldom

_FAULTY = "an observer failed; the change that it was told of stands"


class Courier:
    """A queue of notifications to observers and to the store of the fleet.

    One thread drains the queue at a time. Others return at once; the draining thread re-checks the queue
    before it stops.

    Args:
        fault_log: logs exceptions of notifications.
    """

    __slots__ = ("_bag", "_faults", "_turn")

    def __init__(self, faults: Seldom) -> None:
        self._faults = faults
        self._bag: deque[Callable[[], object]] = deque()
        self._turn = threading.Lock()

    def take(self, message: Callable[[], object]) -> None:
        """Enqueue a notification for the next delivery; may be called under any lock."""
        self._bag.append(message)

    def deliver(self) -> None:
        """Deliver all queued notifications. An exception is logged and does not affect the others."""
        while self._bag and self._turn.acquire(blocking=False):
            try:
                self._empty()
            finally:
                self._turn.release()

    def _empty(self) -> None:
        while self._bag:
            message = self._bag.popleft()
            try:
                message()
            except Exception as error:  # noqa: BLE001 - the caller that made the change must not fail
                self._faults.say("observer", _FAULTY, error)
