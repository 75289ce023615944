"""Latencies as counts of rounded microseconds: small, mergeable, never better than the truth.

Each value is rounded down to its 8 leading binary digits, so a bucket is at most 1/128 of its value wide.
A percentile is the upper edge of its bucket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

DIGITS = 8
"""Significant binary digits: the error is below 1/128, finer than two runs ever agree."""


class Histogram:
    """Counts durations."""

    __slots__ = ("_counts", "_largest_s")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._largest_s = 0.0

    def record(self, duration_s: float) -> None:
        """Count one duration in seconds; a negative one counts as 0."""
        micros = int(duration_s * 1e6) if duration_s > 0.0 else 0
        surplus = micros.bit_length() - DIGITS
        if surplus > 0:
            micros = (micros >> surplus) << surplus
        self._counts[micros] += 1
        self._largest_s = max(self._largest_s, duration_s)

    def merge(self, other: Histogram) -> None:
        """Add everything another histogram counted."""
        self._counts.update(other._counts)
        self._largest_s = max(self._largest_s, other._largest_s)

    @property
    def count(self) -> int:
        """How many durations were recorded."""
        return self._counts.total()

    @property
    def max_s(self) -> float:
        """The longest duration, exact; 0 if there is none."""
        return self._largest_s

    def percentile(self, share: float) -> float | None:
        """The duration in seconds that at least this share of all recorded ones did not exceed.

        Args:
            share: 0..1, such as 0.95.

        Returns:
            At least the true value, at most 1/128 and one microsecond above it; None without any record.
        """
        total = self.count
        if not total:
            return None
        wanted = max(1, math.ceil(share * total))
        rising = self.pairs()
        seen = accumulate(count for _, count in rising)
        edge = next(edge for (edge, _), so_far in zip(rising, seen, strict=True) if so_far >= wanted)
        width = 1 << max(0, edge.bit_length() - DIGITS)
        return min((edge + width) / 1e6, self._largest_s)

    def pairs(self) -> list[tuple[int, int]]:
        """Lower bucket edges in microseconds with their counts, rising."""
        return sorted(self._counts.items())

    @classmethod
    def of(cls, parts: Iterable[Histogram]) -> Histogram:
        """One histogram of several."""
        whole = cls()
        for part in parts:
            whole.merge(part)
        return whole

    def __repr__(self) -> str:
        return f"Histogram({self.count} recorded, max {self._largest_s:.6f} s)"
