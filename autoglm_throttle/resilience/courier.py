"""What happened under a lock, told after it: in order, each once, by one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from autoglm_throttle.resilience.seldom import Seldom

_FAULTY = "an observer failed; the change that it was told of stands"


class Courier:
    """A queue of messages to observers and to the store of the fleet.

    Whoever finds messages delivers them, those of others included; who finds another at it goes on, since
    that one looks again before it leaves.

    Args:
        faults: what logs a message that raises.
    """

    __slots__ = ("_bag", "_faults", "_turn")

    def __init__(self, faults: Seldom) -> None:
        self._faults = faults
        self._bag: deque[Callable[[], object]] = deque()
        self._turn = threading.Lock()

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
            except Exception as error:  # noqa: BLE001 - whoever made the change must not hear of it
                self._faults.say("observer", _FAULTY, error)
