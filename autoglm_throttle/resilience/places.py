"""Calls under way that each hold a place, but only for a time: a call that never ends gives its place up."""

from __future__ import annotations


class Places:
    """Places by serial number, each with the moment it was taken.

    Args:
        lease_s: how long a place is held at most, > 0.
    """

    __slots__ = ("_oldest", "_taken", "lease_s")

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._taken: dict[int, float] = {}
        self._oldest = 0.0
        """No place was taken before this: says without a search that no lease can be over."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, serial: int, now: float) -> None:
        """Give the call ``serial`` a place."""
        if not self._taken or now < self._oldest:
            self._oldest = now
        self._taken[serial] = now

    def leave(self, serial: int) -> bool:
        """Free the place of a call.

        Returns:
            Whether it still had one.
        """
        return self._taken.pop(serial, None) is not None

    def expire(self, now: float) -> None:
        """Take their places away from the calls whose lease is over."""
        if self._taken and now - self._oldest >= self.lease_s:
            self._taken = {
                serial: start for serial, start in self._taken.items() if now - start < self.lease_s
            }
            self._oldest = min(self._taken.values(), default=now)

    def held(self, now: float) -> int:
        """How many leases are not over; free of effects."""
        if self._taken and now - self._oldest >= self.lease_s:
            return sum(now - start < self.lease_s for start in self._taken.values())
        return len(self._taken)

    def clear(self) -> None:
        """Free all places."""
        self._taken.clear()
