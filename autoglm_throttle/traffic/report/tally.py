"""Durations and results of a set of requests as they stand in a report, in total and second by second."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product

from autoglm_throttle.traffic.histogram import Histogram, percentiles_of, rank
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
from autoglm_throttle.traffic.results import HISTOGRAMS, Tally
from autoglm_throttle.types import Priority

# Results counted by each curve; dropped requests have a curve of their own.
OUTCOMES: Mapping[str, tuple[int, ...]] = {
    "planned": (*RequestResult, UNSENT),
    "ok": (RequestResult.OK,),
    "degraded": (RequestResult.DEGRADED,),
    "served": (RequestResult.OK, RequestResult.DEGRADED),
    "limited": (RequestResult.LIMITED,),
    "shed": (RequestResult.SHED,),
    "failed": tuple(kind for kind in RequestResult if kind.failed and kind is not RequestResult.DROPPED),
    "dropped": (RequestResult.DROPPED,),
    "unsent": (UNSENT,),
}

SHARES = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99, "p999_s": 0.999}
NOT_SERVED = ("limited", "shed", "failed", "dropped", "unsent")


def rounded(value: float | None) -> float | None:
    """Round seconds to the microsecond, the resolution of the histogram; None stays None."""
    return None if value is None else round(value, 6)


def times(histogram: Histogram) -> Part:
    """Convert a histogram for the report."""
    percentiles = map(rounded, histogram.percentiles(SHARES.values()))
    return {
        "count": histogram.count,
        "mean_s": rounded(histogram.mean_s),
        **dict(zip(SHARES, percentiles, strict=True)),
        "max_s": rounded(histogram.max_s) if histogram.count else None,
        "histogram": [[edge, count] for edge, count in histogram.pairs()],
    }


def percentile(durations: Part, share: float) -> float | None:
    """Return a percentile of durations in a report, in seconds, by its share 0..1; None without data."""
    return rounded(*percentiles_of(durations["histogram"], durations["max_s"] or 0.0, (share,)))


def tally(row: Tally, length_s: float, step_s: float) -> Part:
    """Build a tally from sums whose requests were sent within ``length_s``, with answers by ``step_s``."""

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
        **{name: times(getattr(row, name)) for name in HISTOGRAMS},
    }


def _rate(answers: Mapping[int, int], length_s: float, step_s: float) -> float:
    """Compute answers per second from the first answer on; answers during the drain do not count."""
    if length_s <= 0.0 or not answers:
        return 0.0
    # Steps after `last` belong to the drain.
    last = min(answers) + math.ceil(length_s / step_s)
    return sum(count for step, count in answers.items() if step <= last) / length_s


def seconds(plan: LoadPlan, log: RequestLog) -> Part:
    """Build the curves of a run in which every request has ended or was skipped."""
    # Float sums of levels may exceed a whole second slightly; that makes no extra second.
    count = max(math.ceil(plan.duration_s - 1e-6), int(max(plan.offsets, default=0.0)) + 1)
    counts: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * count)
    served: list[list[list[float]]] = [[[] for _ in range(count)] for _ in Priority]
    lags: list[list[float]] = [[] for _ in range(count)]
    columns = (plan.offsets, plan.priorities, log.results, log.response_s, log.lag_s)
    last_served = RequestResult.DEGRADED.value
    # This loop runs once per request of a run, so it does as little as possible.
    for offset_s, priority, result, response_s, lag_s in zip(*columns, strict=True):
        second = int(offset_s)
        counts[priority, result][second] += 1
        if result <= last_served:
            served[priority][second].append(response_s)
        if not math.isnan(lag_s):
            lags[second].append(lag_s)
    zeros = [0] * count
    every = [list(chain.from_iterable(parts)) for parts in zip(*served, strict=True)]

    def curves(priorities: Iterable[int], *names: str) -> dict[str, list[int]]:
        keys = {name: product(priorities, OUTCOMES[name]) for name in names}
        counted = {name: [counts.get(key, zeros) for key in keys[name]] for name in names}
        return {name: list(map(sum, zip(*lists, strict=True))) for name, lists in counted.items()}

    return {
        **curves(Priority, "planned", "ok", "degraded", *NOT_SERVED),
        "inflight": peaks(plan.offsets, log.lag_s, log.response_s, log.results, count),
        "p50_s": _percentiles(every, 0.5),
        "p95_s": _percentiles(every, 0.95),
        "p99_s": _percentiles(every, 0.99),
        "lag_p99_s": _percentiles(lags, 0.99),
        "priorities": {
            one.label: curves((one,), "planned", "served", *NOT_SERVED)
            | {"p95_s": _percentiles(served[one], 0.95)}
            for one in Priority
        },
    }


def exact_percentile(rising: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values to the microsecond: the least not below this share of them."""
    return rounded(rising[rank(share, len(rising)) - 1]) if rising else None


def _percentiles(by_second: Iterable[list[float]], share: float) -> list[float | None]:
    return [exact_percentile(sorted(values), share) for values in by_second]


def peaks(
    offsets: Sequence[float],
    lag_s: Sequence[float],
    response_s: Sequence[float],
    outcomes: Sequence[int],
    count: int,
) -> list[int]:
    """Return the peak in flight, launch and end included, within each of the first ``count`` seconds."""
    launched: list[float] = []
    ended: list[float] = []
    never = RequestResult.DROPPED.value  # dropped and skipped requests have the greatest codes
    for offset, lag, response, outcome in zip(offsets, lag_s, response_s, outcomes, strict=True):
        if outcome < never:
            known_s = 0.0 if math.isnan(lag) else lag
            launched.append(offset + known_s)
            ended.append(offset + (response if response > known_s else known_s))
    launched.sort()
    ended.sort()
    found = [bisect_left(launched, second) - bisect_left(ended, second) for second in range(count)]
    over = 0
    for begun, start in enumerate(launched, 1):
        # `<`: a request that ends exactly at this launch still counts as in flight.
        while ended[over] < start:
            over += 1
        second = int(start)
        if second < count and begun - over > found[second]:
            found[second] = begun - over
    return found
