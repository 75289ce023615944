"""Sliding windows above 1000 units in bounded memory: counts in 60 sub-buckets instead of a log.

The window is divided into 60 buckets; bucket i counts the units from i widths to the next.
The present bucket and the 60 before it count fully, including a partly expired one. So no window admits more
than the limit's units, and a unit counts for up to 61/60 of a window. The shared store counts large limits
in the same way, with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.decisions import Usage, Usages, rejection, seconds_until
from autoglm_throttle.types import SUB_BUCKETS, Decision, UserLimit

COUNTED_BUCKETS = SUB_BUCKETS + 1  # Buckets that count: the present one, and the 60 before it


class BucketRing:
    """Units of one user under one limit, in at most 300 bytes.

    The counts of all buckets are the digits of one number, the newest bucket's the lowest.
    So passing time is a shift, and the oldest bucket is the highest digit.
    """

    __slots__ = ("counts", "last")

    def __init__(self) -> None:
        self.counts: int = 0
        self.last: int = 0  # Number of the newest bucket; undefined while there are no counts


class BucketWindow:
    """One large limit; the account of a user is a `BucketRing`."""

    def __init__(self, limit: UserLimit) -> None:
        self._limit = limit
        self._width_us = -(-limit.window_s * 1_000_000 // SUB_BUCKETS)
        self._bits = limit.counted_at_most.bit_length()
        self._full = (1 << self._bits) - 1  # The largest digit, at least what is counted
        self._all = (1 << self._bits * COUNTED_BUCKETS) - 1

    def open(self) -> BucketRing:
        """Return the ring of a new user."""
        return BucketRing()

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Apply other units from now on, at most the largest digit; the window is the same."""
        (self._limit,) = limits

    def test(self, ring: BucketRing, units: int, now: float) -> Usages | Decision:
        """Return the limit's decision on ``units``; charges nothing.

        Counts that have left the window are dropped: a clock that goes back counts as standing still.
        """
        bucket, counts = int(now * 1e6 // self._width_us), ring.counts
        if bucket > ring.last or not counts:
            counts = self._counts(ring, bucket)
            ring.last = bucket  # first: broken off in between by a fork, units stay longer
            ring.counts = counts
        limit = self._limit
        used = counts % self._full or (self._full if counts else 0)  # as `_sum`, without the call
        remaining = limit.limit - used - units
        if remaining < 0:
            return self._rejection(counts, ring.last, units, now)
        oldest = (counts.bit_length() - 1) // self._bits if counts else 0
        return ((limit, remaining, (ring.last - oldest + COUNTED_BUCKETS) * self._width_us / 1e6 - now),)

    def test_each(
        self, ring: BucketRing, units: int, now: float, more: Sequence[int] | None = None
    ) -> list[Usage | Decision]:
        """Return the limit's decision on ``units`` and ``more``; a list of one; charges nothing."""
        verdict = self.test(ring, units if more is None else units + more[0], now)
        return [verdict if isinstance(verdict, Decision) else verdict[0]]

    def _rejection(self, counts: int, last: int, units: int, now: float) -> Decision:
        limit, width_us, used = self._limit, self._width_us, self._sum(counts)
        oldest = (counts.bit_length() - 1) // self._bits if counts else 0
        reset_s = (last - oldest + COUNTED_BUCKETS) * width_us / 1e6 - now
        wait = math.inf
        if units <= limit.limit:
            excess = used + units - limit.limit
            leaves = last - self._oldest_with(counts, excess, oldest) + COUNTED_BUCKETS
            wait = seconds_until(_shown_at(leaves * width_us), now)
        return rejection(limit, used, reset_s if used else 0.0, wait)

    def charge(self, ring: BucketRing, units: int, now: float) -> None:  # noqa: ARG002 - as of other layouts
        """Charge ``units`` that `test` has just allowed at ``now``."""
        ring.counts += units

    def charge_over(self, ring: BucketRing, units: int, now: float) -> None:
        """Charge ``units`` without a test, above the limit as well, up to the largest digit."""
        bucket = self._bucket(now)
        if bucket > ring.last or not ring.counts:
            counts = self._counts(ring, bucket)
            ring.last = bucket
            ring.counts = counts
        ring.counts += min(units, self._full - self._sum(ring.counts))

    def refund(self, ring: BucketRing, units: int, charged_at: float, now: float) -> bool:
        """Remove units from the bucket in which they were charged; return whether all were still present."""
        width_us = self._width_us  # `_bucket`, without the calls
        charged = int(charged_at * 1e6 // width_us)
        age = ring.last - charged
        if now * 1e6 // width_us - charged >= COUNTED_BUCKETS or not 0 <= age < COUNTED_BUCKETS:
            return False
        shift = age * self._bits
        if ring.counts >> shift & self._full < units:
            return False
        ring.counts -= units << shift
        return True

    def is_idle(self, ring: BucketRing, now: float) -> bool:
        """Whether the limit counts no unit."""
        return not self._counts(ring, self._bucket(now))

    def remaining(self, ring: BucketRing, now: float) -> float:
        """Return the remaining share of the limit: 1 for an idle user, 0 for an exhausted one."""
        return 1.0 - self._sum(self._counts(ring, self._bucket(now))) / self._limit.limit

    def _bucket(self, now: float) -> int:
        """Return the number of the bucket of an instant, at a resolution of whole microseconds."""
        return int(now * 1e6 // self._width_us)

    def _counts(self, ring: BucketRing, bucket: int) -> int:
        """Return the counts as of a bucket, without expired ones; an earlier bucket reads as the newest."""
        age, counts = bucket - ring.last, ring.counts
        if age <= 0:
            return counts
        return counts << age * self._bits & self._all if age < COUNTED_BUCKETS else 0

    def _sum(self, counts: int) -> int:
        # A number and its digit sum are equal modulo the largest digit, as modulo 9 in decimal. The sum is
        # at most that digit: so it is the remainder, or the digit itself if a number above 0 leaves 0.
        return counts % self._full or (self._full if counts else 0)

    def _oldest_with(self, counts: int, units: int, oldest: int) -> int:
        """Return the largest age at which this bucket and the older ones hold at least ``units``."""
        youngest = 0
        while youngest < oldest:
            middle = (youngest + oldest + 1) // 2
            if self._sum(counts >> middle * self._bits) >= units:
                youngest = middle
            else:
                oldest = middle - 1
        return oldest


def _shown_at(instant_us: int) -> float:
    """Return the first instant in seconds that rounds down to at least ``instant_us`` microseconds."""
    instant = instant_us / 1e6
    while instant * 1e6 < instant_us:
        instant = math.nextafter(instant, math.inf)
    while (earlier := math.nextafter(instant, -math.inf)) * 1e6 >= instant_us:
        instant = earlier
    return instant
