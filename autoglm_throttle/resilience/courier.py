"""What happened under a lock, told after it: in order, each once, by one thread at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("autoglm_throttle")


class Courier:
    """A queue of messages to observers and to the store of the fleet.

    Whoever finds messages delivers them, those of others included; who finds another at it goes on, since that
    one looks again before it leaves.

    Args:
        name: of the guard, for the log.
    """

    __slots__ = ("_bag", "_name", "_turn")

    def __init__(self, name: str) -> None:
        self._name = name
        self._bag: deque[Callable[[], object]] = deque()
        self._turn = threading.Lock()

    @property
    def laden(self) -> bool:
        """Whether there is something to deliver."""
        return bool(self._bag)

    def take(self, message: Callable[[], object]) -> None:
        """Keep a message for the next delivery; may be called under any lock."""
        self._bag.append(message)

    def deliver(self) -> None:
        """Deliver what there is. A message that raises is logged, and changes nothing for the others."""
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
            except Exception:
                _log.exception("an observer of %s failed; the change that it was told of stands", self._name)
