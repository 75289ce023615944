"""Limits above 1000 units in bounded memory: counts in 60 strict sub-buckets instead of a log.

The window is cut into buckets of a sixtieth; bucket i holds what was spent from i widths on to the next.
The present bucket and the 60 before it count whole, a partly expired one too: so in no window are more
than the limit's units admitted, and a unit counts for a window to 61/60 of it. A store that several
processes share counts large limits in the same way, with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoglm_throttle.limiting.instant import until
from autoglm_throttle.limiting.verdict import OK, refusal
from autoglm_throttle.model import SUB_BUCKETS, Decision, UserLimit

INSIDE = SUB_BUCKETS + 1
"""Buckets that count: the present one, and as many before it as the window is long."""


class Ring:
    """What one user has spent under one limit, at most 300 bytes of it.

    The counts of all buckets are the digits of one number, the newest bucket's the lowest.
    So time that passes is a shift, and the oldest bucket is where the number begins.
    """

    __slots__ = ("counts", "last")

    def __init__(self) -> None:
        self.counts: int = 0
        self.last: int = 0
        """Number of the newest bucket; means nothing while there are no counts."""


class SubBuckets:
    """One large limit; what it keeps of a user is a `Ring`.

    Args:
        limit: of any number of units.
    """

    def __init__(self, limit: UserLimit) -> None:
        self._limit = limit
        self._width_us = -(-limit.window_s * 1_000_000 // SUB_BUCKETS)
        self._bits = limit.limit.bit_length()
        self._full = (1 << self._bits) - 1
        """The largest digit, at least the limit."""
        self._all = (1 << self._bits * INSIDE) - 1

    def open(self) -> Ring:
        """The ring of somebody who has spent nothing."""
        return Ring()

    def resize(self, limits: Sequence[UserLimit]) -> None:
        """Judge by other units from now on, no more than a digit holds; the window is the same."""
        (self._limit,) = limits

    def verdicts(self, ring: Ring, units: int, now: float) -> list[Decision]:
        """What the limit says on ``units``, with what would remain after them; a list of one."""
        limit, width_us = self._limit, self._width_us
        bucket = self._bucket(now)
        last, counts = ring.last, self._counts(ring, bucket)
        if counts and last > bucket:
            bucket = last
        used = self._sum(counts)
        oldest = (counts.bit_length() - 1) // self._bits if counts else 0
        reset_s = (bucket - oldest + INSIDE) * width_us / 1e6 - now
        left = limit.limit - used - units
        if left >= 0:
            name, most = limit.name, limit.limit
            return [Decision(True, OK, "", name, most, left, 0.0, reset_s, limit.window_s)]
        wait = math.inf
        if units <= limit.limit:
            leaves = bucket - self._oldest_with(counts, -left, oldest) + INSIDE
            wait = until(_shown_at(leaves * width_us), now)
        return [refusal(limit, used, reset_s if used else 0.0, wait)]

    def verdicts_each(self, ring: Ring, units: Sequence[int], now: float) -> list[Decision]:
        """The same, as there is but one limit."""
        return self.verdicts(ring, units[0], now)

    def spend(self, ring: Ring, units: int, now: float) -> None:
        """Charge ``units``; a clock that went back reads as standing still."""
        bucket = self._bucket(now)
        counts = self._counts(ring, bucket)
        if bucket > ring.last or not counts:
            ring.last = bucket  # first: if a fork breaks this off, the units only stay for longer
        ring.counts = counts + units

    def take_out(self, ring: Ring, units: int, charged_at: float, now: float) -> bool:
        """Remove units from the bucket of the instant at which they were charged, and from no other.

        Returns:
            Whether they were there, all of them, and had not left the window by themselves.
        """
        charged, present = self._bucket(charged_at), self._bucket(now)
        age = ring.last - charged
        if present - charged >= INSIDE or not 0 <= age < INSIDE:
            return False
        shift = age * self._bits
        if ring.counts >> shift & self._full < units:
            return False
        ring.counts -= units << shift
        return True

    def idle(self, ring: Ring, now: float) -> bool:
        """Whether the limit counts nothing any more."""
        return not self._counts(ring, self._bucket(now))

    def left(self, ring: Ring, now: float) -> float:
        """The share that is left of the limit: 1 for an idle user, 0 for an exhausted one."""
        return 1.0 - self._sum(self._counts(ring, self._bucket(now))) / self._limit.limit

    def _bucket(self, now: float) -> int:
        """Number of the bucket of an instant, of which only whole microseconds count."""
        return int(now * 1e6 // self._width_us)

    def _counts(self, ring: Ring, bucket: int) -> int:
        """The counts as of a bucket, without those that have left; an earlier bucket is the newest."""
        age, counts = bucket - ring.last, ring.counts
        if age <= 0:
            return counts
        return counts << age * self._bits & self._all if age < INSIDE else 0

    def _sum(self, counts: int) -> int:
        """The sum of all counts.

        A number and the sum of its digits leave the same remainder by the largest digit,
        as by 9 in the decimal system. The sum is no more than that digit, so it is the remainder,
        or the digit itself where a number above 0 leaves none.
        """
        return counts % self._full or (self._full if counts else 0)

    def _oldest_with(self, counts: int, units: int, oldest: int) -> int:
        """The largest age at which there are so many units, those of older buckets included."""
        youngest = 0
        while youngest < oldest:
            middle = (youngest + oldest + 1) // 2
            if self._sum(counts >> middle * self._bits) >= units:
                youngest = middle
            else:
                oldest = middle - 1
        return oldest


def _shown_at(instant_us: int) -> float:
    """The first instant in seconds that is so many microseconds or more, rounded down to whole ones."""
    instant = instant_us / 1e6
    while instant * 1e6 < instant_us:
        instant = math.nextafter(instant, math.inf)
    while (earlier := math.nextafter(instant, -math.inf)) * 1e6 >= instant_us:
        instant = earlier
    return instant
