"""Durations in a report: a histogram with its usual percentiles."""

from __future__ import annotations

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.schema import Times

DECIMALS = 6
"""Microseconds: the resolution of the histogram."""

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


def times(histogram: Histogram) -> Times:
    """Convert a histogram for the report."""
    p50, p90, p95, p99, p999 = map(rounded, histogram.percentiles(SHARES))
    return {
        "count": histogram.count,
        "mean_s": rounded(histogram.mean_s),
        "p50_s": p50,
        "p90_s": p90,
        "p95_s": p95,
        "p99_s": p99,
        "p999_s": p999,
        "max_s": rounded(histogram.max_s) if histogram.count else None,
        "histogram": [[edge, count] for edge, count in histogram.pairs()],
    }


def percentile(durations: Times, share: float) -> float | None:
    """Compute a percentile of durations in a report.

    Args:
        durations: of the report.
        share: 0..1, such as 0.75.

    Returns:
        Seconds; None without data.
    """
    pairs = [(edge, count) for edge, count in durations["histogram"]]
    histogram = Histogram.restored(pairs, durations["max_s"] or 0.0)
    return rounded(histogram.percentile(share))


def rounded(value: float | None) -> float | None:
    """Round seconds to the microsecond; None stays None."""
    return None if value is None else round(value, DECIMALS)
