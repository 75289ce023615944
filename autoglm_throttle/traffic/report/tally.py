"""Durations and results of a set of requests, as they stand in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.report.schema import TallyDocument, Times
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.results import Tally


def rounded(value: float | None) -> float | None:
    """Round seconds to the microsecond, the resolution of the histogram; None stays None."""
    return None if value is None else round(value, 6)


def times(histogram: Histogram) -> Times:
    """Convert a histogram for the report."""
    p50, p90, p95, p99, p999 = map(rounded, histogram.percentiles((0.5, 0.9, 0.95, 0.99, 0.999)))
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
    """Return a percentile of durations in a report, in seconds, by its share 0..1; None without data."""
    pairs = [(edge, count) for edge, count in durations["histogram"]]
    return rounded(Histogram.restored(pairs, durations["max_s"] or 0.0).percentile(share))


def tally(row: Tally, length_s: float, step_s: float) -> TallyDocument:
    """Build a tally from sums whose requests were sent within ``length_s`` (0 or less: none was sent).

    The answers of the sums are counted in steps of ``step_s``.
    """

    def ratio(count: int) -> float | None:
        return count / row.sent if row.sent else None

    goodput_rps = _rate(row.timely_answers, length_s, step_s)
    return {
        "planned": row.planned,
        "unsent": row.unsent,
        "classes": {outcome.label: row.results[outcome] for outcome in RequestResult},
        "statuses": {str(status): count for status, count in sorted(row.statuses.items())},
        "reasons": dict(sorted(row.reasons.items())),
        "cost": {"planned": row.cost_planned, "served": row.cost_served},
        "done_ratio": ratio(row.answered),
        "error_ratio": ratio(row.failed),
        "limited_ratio": ratio(row.limited),
        "shed_ratio": ratio(row.shed),
        "dropped_ratio": ratio(row.results[RequestResult.DROPPED]),
        "goodput": {"requests": row.timely, "ratio": ratio(row.timely), "rps": goodput_rps},
        "rps": _rate(row.answers, length_s, step_s),
        "response": times(row.response),
        "service": times(row.service),
        "first_byte": times(row.first_byte),
        "rejection": times(row.rejection),
        "promised": times(row.promised),
    }


def _rate(answers: Mapping[int, int], length_s: float, step_s: float) -> float:
    """Compute answers per second; the window starts at the first answer and is as long as the sending.

    A slow answer does not lower the rate. Answers delivered by a queue only during the drain do not raise it.
    """
    if length_s <= 0.0 or not answers:
        return 0.0
    # Steps after `last` belong to the drain.
    last = min(answers) + math.ceil(length_s / step_s)
    return sum(count for step, count in answers.items() if step <= last) / length_s
