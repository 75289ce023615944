"""Results of a run by second of the intended start, and the peak number of requests in flight."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from autoglm_throttle.traffic.histogram import rank
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.schema import PrioritySeconds, Seconds
from autoglm_throttle.traffic.report.tally import rounded
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
from autoglm_throttle.types import Priority

SERVED = (RequestResult.OK, RequestResult.DEGRADED)
FAILED = tuple(kind for kind in RequestResult if kind.failed and kind is not RequestResult.DROPPED)
"""Results that count as failed; dropped requests have a curve of their own."""


class _Columns(NamedTuple):
    """Columns of a plan and its request log, in order of time."""

    offsets: Sequence[float]
    priorities: bytes
    outcomes: bytearray
    lag_s: Sequence[float]
    response_s: Sequence[float]


def _sorted_columns(plan: LoadPlan, log: RequestLog) -> _Columns:
    """Read the columns; a plan that is not in order of time, such as that of a closed loop, is sorted."""
    columns = _Columns(plan.offsets, plan.priorities, log.results, log.lag_s, log.response_s)
    if all(earlier <= later for earlier, later in pairwise(plan.offsets)):
        return columns
    order = sorted(range(len(plan)), key=plan.offsets.__getitem__)
    return _Columns(
        array("d", map(plan.offsets.__getitem__, order)),
        bytes(map(plan.priorities.__getitem__, order)),
        bytearray(map(log.results.__getitem__, order)),
        array("f", map(log.lag_s.__getitem__, order)),
        array("f", map(log.response_s.__getitem__, order)),
    )


def seconds(plan: LoadPlan, log: RequestLog) -> Seconds:
    """Build the curves of a run.

    Args:
        plan: the planned requests.
        log: the request log; every request has ended or was skipped.
    """
    columns = _sorted_columns(plan, log)
    latest_s = columns.offsets[-1] if columns.offsets else 0.0
    # Float sums of levels may exceed a whole second slightly; that makes no extra second.
    count = max(math.ceil(plan.duration_s - 1e-6), int(latest_s) + 1)
    edges = [bisect_left(columns.offsets, second) for second in range(count)] + [len(plan)]
    spans = [slice(first, stop) for first, stop in pairwise(edges)]
    counts = [Counter(zip(columns.priorities[span], columns.outcomes[span], strict=True)) for span in spans]
    served = [_responses(columns, span) for span in spans]
    every = [sorted(chain.from_iterable(responses)) for responses in served]
    lags = [sorted(lag_s for lag_s in columns.lag_s[span] if not math.isnan(lag_s)) for span in spans]

    def curve(*outcomes: int) -> list[int]:
        return _curve(counts, Priority, outcomes)

    return {
        "planned": [tally.total() for tally in counts],
        "ok": curve(RequestResult.OK),
        "degraded": curve(RequestResult.DEGRADED),
        "limited": curve(RequestResult.LIMITED),
        "shed": curve(RequestResult.SHED),
        "failed": curve(*FAILED),
        "dropped": curve(RequestResult.DROPPED),
        "unsent": curve(UNSENT),
        "inflight": peaks(columns.offsets, columns.lag_s, columns.response_s, columns.outcomes, count),
        "p50_s": [exact_percentile(rising, 0.5) for rising in every],
        "p95_s": [exact_percentile(rising, 0.95) for rising in every],
        "p99_s": [exact_percentile(rising, 0.99) for rising in every],
        "lag_p99_s": [exact_percentile(rising, 0.99) for rising in lags],
        "priorities": {priority.label: _of_priority(counts, served, priority) for priority in Priority},
    }


def exact_percentile(rising: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values to the microsecond: the least not below this share of them."""
    return rounded(rising[rank(share, len(rising)) - 1]) if rising else None


def _responses(columns: _Columns, span: slice) -> tuple[list[float], ...]:
    """Collect the response times of served requests by priority, rising."""
    served: tuple[list[float], ...] = tuple([] for _ in Priority)
    last_served = RequestResult.DEGRADED.value
    rows = zip(columns.outcomes[span], columns.priorities[span], columns.response_s[span], strict=True)
    for outcome, priority, response_s in rows:
        if outcome <= last_served:
            served[priority].append(response_s)
    for responses in served:
        responses.sort()
    return served


def _of_priority(
    counts: Sequence[Counter[tuple[int, int]]], served: Sequence[Sequence[list[float]]], priority: Priority
) -> PrioritySeconds:
    def curve(*outcomes: int) -> list[int]:
        return _curve(counts, (priority,), outcomes)

    return {
        "planned": curve(*RequestResult, UNSENT),
        "served": curve(*SERVED),
        "limited": curve(RequestResult.LIMITED),
        "shed": curve(RequestResult.SHED),
        "failed": curve(*FAILED),
        "dropped": curve(RequestResult.DROPPED),
        "unsent": curve(UNSENT),
        "p95_s": [exact_percentile(responses[priority], 0.95) for responses in served],
    }


def _curve(
    counts: Sequence[Counter[tuple[int, int]]], priorities: Iterable[int], outcomes: Sequence[int]
) -> list[int]:
    wanted = [(priority, outcome) for priority in priorities for outcome in outcomes]
    return [sum(tally.get(key, 0) for key in wanted) for tally in counts]


def peaks(
    offsets: Sequence[float],
    lag_s: Sequence[float],
    response_s: Sequence[float],
    outcomes: Sequence[int],
    count: int,
) -> list[int]:
    """Return the peak in flight within each second from the start of the run.

    A request is in flight from its launch to its end, both included. A dropped or skipped request never is in
    flight. A launch without a known lag was on time.

    Args:
        offsets: intended starts in seconds.
        lag_s: launch delay of each request, or NaN.
        response_s: from the intended start to the end.
        outcomes: result codes of the request log.
        count: number of seconds; later ones are ignored.
    """
    events: list[tuple[float, int]] = []
    for offset, known_lag_s, response, outcome in zip(offsets, lag_s, response_s, outcomes, strict=True):
        if outcome < RequestResult.DROPPED:  # dropped and skipped requests have the greatest codes
            lag = 0.0 if math.isnan(known_lag_s) else known_lag_s
            events += ((offset + lag, -1), (offset + max(lag, response), 1))
    # Sorted by time, a launch (-1) before an end (1): the request that ends at a launch still counts.
    events.sort()
    found = [0] * count
    in_flight = second = 0
    for at_s, change in chain(events, [(float(count), 1)]):
        while second < count and second <= at_s:
            found[second] = in_flight
            second += 1
        in_flight -= change
        if change < 0 and at_s < count:
            found[second - 1] = max(found[second - 1], in_flight)
    return found
