"""Latency histogram of microseconds rounded down to 8 binary digits; mergeable.

A percentile is the upper edge of its bucket, so at most 1/128 above the true value, and never below it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import accumulate

DIGITS = 8  # Significant binary digits: the error is below 1/128, less than the difference between two runs

# By bit length: keeps the leading digits. 63 digits of microseconds are 292 000 years.
_MASKS = [-1 << max(0, length - DIGITS) for length in range(64)]


def rank(share: float, count: int) -> int:
    """Return the nearest rank, from 1, of the percentile ``share`` (0..1) among ``count`` rising values."""
    # As written: 0.07 of 100 is 7, though the binary product is above 7.
    parts, whole = Decimal(repr(share)).as_integer_ratio()
    return max(1, -(-parts * count // whole))


def percentiles_of(
    rising: Sequence[Sequence[int]], max_s: float, shares: Iterable[float]
) -> list[float | None]:
    """Return percentiles of the pairs of a histogram, and of its longest duration."""
    if not rising:
        return [None for _ in shares]
    cumulative = list(accumulate(count for _, count in rising))
    edges = [rising[bisect_left(cumulative, rank(share, cumulative[-1]))][0] for share in shares]
    widths = [1 << max(0, edge.bit_length() - DIGITS) for edge in edges]
    return [min((edge + width) / 1e6, max_s) for edge, width in zip(edges, widths, strict=True)]


class Histogram:
    """Counts durations."""

    __slots__ = ("_counts", "_sum_us", "max_s")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sum_us = 0
        self.max_s: float = 0.0  # The longest duration, exact; 0 if there is none

    def record(self, duration_s: float) -> None:
        """Count one duration in seconds; a negative one counts as 0."""
        self.record_all((duration_s,))

    def record_all(self, durations_s: Sequence[float]) -> None:
        """Count durations in seconds; a negative one counts as 0, and an unknown one (NaN) is left out."""
        if math.isnan(sum(durations_s)):  # one NaN makes the sum NaN: cheaper than a test of each value
            durations_s = [duration_s for duration_s in durations_s if not math.isnan(duration_s)]
        if not durations_s:
            return
        micros = [int(duration_s * 1e6) for duration_s in durations_s]
        if min(micros) < 0:
            micros = [max(0, value) for value in micros]
        masks = _MASKS
        self._sum_us += sum(micros)
        self._counts.update([value & masks[value.bit_length()] for value in micros])
        self.max_s = max(self.max_s, *durations_s)

    def update(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self._counts.update(other._counts)
        self.max_s = max(self.max_s, other.max_s)
        self._sum_us += other._sum_us

    @property
    def count(self) -> int:
        """Number of recorded durations."""
        return self._counts.total()

    @property
    def mean_s(self) -> float | None:
        """The mean duration, at most one microsecond below the truth; None without any record."""
        return self._sum_us / self.count / 1e6 if self._counts else None

    def percentile(self, share: float) -> float | None:
        """Return the seconds that at least ``share`` (0..1) of the durations did not exceed, or None."""
        return self.percentiles((share,))[0]

    def percentiles(self, shares: Iterable[float]) -> list[float | None]:
        """Return several percentiles in one pass, in the order of the shares."""
        return percentiles_of(self.pairs(), self.max_s, shares)

    def pairs(self) -> list[tuple[int, int]]:
        """Return lower bucket edges in microseconds with their counts, rising."""
        return sorted(self._counts.items())

    @classmethod
    def of(cls, parts: Iterable[Histogram]) -> Histogram:
        """Merge several histograms into a new one."""
        whole = cls()
        for part in parts:
            whole.update(part)
        return whole
