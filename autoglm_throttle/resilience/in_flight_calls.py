"""Calls in flight of one breaker, by serial number."""

from __future__ import annotations


class InFlightCalls:
    """Serial numbers of the calls of one breaker, and the ordinary calls that hold a slot.

    Args:
        max_calls: maximum of ordinary calls; 0: none.
    """

    __slots__ = ("_newest", "is_bounded", "max_calls", "serials")

    def __init__(self, max_calls: int) -> None:
        self._newest = 0
        self.max_calls: int = max_calls
        """Slots, if `is_bounded`."""
        self.is_bounded: bool = max_calls > 0
        """Whether ordinary calls need a slot."""
        self.serials: set[int] = set()
        """Ordinary calls that hold a slot."""

    def next_serial(self) -> int:
        """Return the number of a new call, above 0."""
        self._newest += 1
        return self._newest

    def acquire(self) -> int:
        """Give a new ordinary call a slot and return its number."""
        self._newest += 1
        self.serials.add(self._newest)
        return self._newest
