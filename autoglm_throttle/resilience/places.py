"""Trials under way that each hold a place, but only for a time: one that never ends gives its place up."""

from __future__ import annotations

import math


class Places:
    """Places by serial number, each with the moment at which it was taken.

    Args:
        lease_s: how long a place is held at most, > 0.
    """

    __slots__ = ("_first_s", "_lease_s", "_taken")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._taken: dict[int, float] = {}
        self._first_s = math.inf
        """No place was taken before: while this lease runs they all do, and nobody has to search."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, serial: int, now: float) -> None:
        """Give the trial ``serial`` a place."""
        self._first_s = min(self._first_s, now)
        self._taken[serial] = now

    def leave(self, serial: int) -> bool:
        """Free the place of a trial.

        Returns:
            Whether it still had one.
        """
        return self._taken.pop(serial, None) is not None

    def expire(self, now: float) -> None:
        """Take their places away from the trials whose lease is over."""
        if now - self._first_s >= self._lease_s:
            self._taken = {serial: at for serial, at in self._taken.items() if now - at < self._lease_s}
            self._first_s = min(self._taken.values(), default=math.inf)

    def held(self, now: float) -> int:
        """How many leases are not over; free of effects."""
        if now - self._first_s < self._lease_s:
            return len(self._taken)
        return sum(now - at < self._lease_s for at in self._taken.values())

    def clear(self) -> None:
        """Free all places."""
        self._taken.clear()
        self._first_s = math.inf
