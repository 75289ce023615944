"""Slots for half-open probes, each with a lease: a probe that never ends loses its slot."""

from __future__ import annotations

import math


class HalfOpenSlots:
    """Slots by serial number, each with the time of its acquisition.

    Args:
        lease_s: longest time for which a slot is held, in seconds, > 0.
    """

    __slots__ = ("_first_s", "_lease_s", "acquired")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self.acquired: dict[int, float] = {}
        """Serial number -> time of acquisition."""
        self._first_s = math.inf
        """Time of the oldest slot at most: until its lease expires, no search is needed."""

    def __len__(self) -> int:
        return len(self.acquired)

    def acquire(self, serial: int, now: float) -> None:
        """Give the probe ``serial`` a slot."""
        self._first_s = min(self._first_s, now)
        self.acquired[serial] = now

    def release(self, serial: int) -> bool:
        """Release the slot of a probe.

        Returns:
            Whether it still held one.
        """
        return self.acquired.pop(serial, None) is not None

    def expire(self, now: float) -> None:
        """Release the slots with an expired lease."""
        if now - self._first_s >= self._lease_s:
            self.acquired = {serial: at for serial, at in self.acquired.items() if now - at < self._lease_s}
            self._first_s = min(self.acquired.values(), default=math.inf)

    def count_held(self, now: float) -> int:
        """Return the number of leases that have not expired. Has no effects."""
        if now - self._first_s < self._lease_s:
            return len(self.acquired)
        return sum(now - at < self._lease_s for at in self.acquired.values())

    def clear(self) -> None:
        """Release all slots."""
        self.acquired.clear()
        self._first_s = math.inf
