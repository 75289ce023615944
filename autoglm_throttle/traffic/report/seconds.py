"""Results of a run by second of the intended start."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from autoglm_throttle.traffic.histogram import rank
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.inflight import peaks
from autoglm_throttle.traffic.report.schema import PrioritySeconds, Seconds
from autoglm_throttle.traffic.report.times import rounded
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
from autoglm_throttle.types import Priority

FAILED = tuple(kind for kind in RequestResult if kind.failed and kind is not RequestResult.DROPPED)
"""Results that count as failed; dropped requests have a curve of their own."""


class _SecondStats(NamedTuple):
    """Exact percentiles of one second."""

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    lag_p99_s: float | None
    by_priority: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a plan and its request log, in order of time."""

    offsets: Sequence[float]
    priorities: bytes
    outcomes: bytearray
    lag_s: Sequence[float]
    response_s: Sequence[float]

    @classmethod
    def of(cls, plan: LoadPlan, log: RequestLog) -> _Columns:
        """Read the columns; a plan that is not in order of time, such as that of a closed loop, is sorted."""
        if all(earlier <= later for earlier, later in pairwise(plan.offsets)):
            return cls(plan.offsets, plan.priorities, log.results, log.lag_s, log.response_s)
        order = sorted(range(len(plan)), key=plan.offsets.__getitem__)
        return cls(
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
    columns = _Columns.of(plan, log)
    latest_s = columns.offsets[-1] if columns.offsets else 0.0
    # Float sums of levels may exceed a whole second slightly; that makes no extra second.
    count = max(math.ceil(plan.duration_s - 1e-6), int(latest_s) + 1)
    edges = [bisect_left(columns.offsets, second) for second in range(count)] + [len(plan)]
    counts = [
        Counter(zip(columns.priorities[first:stop], columns.outcomes[first:stop], strict=True))
        for first, stop in pairwise(edges)
    ]
    stats = [_second_stats(columns, slice(first, stop)) for first, stop in pairwise(edges)]
    return {
        "planned": [tally.total() for tally in counts],
        "ok": _curve(counts, Priority, (RequestResult.OK,)),
        "degraded": _curve(counts, Priority, (RequestResult.DEGRADED,)),
        "limited": _curve(counts, Priority, (RequestResult.LIMITED,)),
        "shed": _curve(counts, Priority, (RequestResult.SHED,)),
        "failed": _curve(counts, Priority, FAILED),
        "dropped": _curve(counts, Priority, (RequestResult.DROPPED,)),
        "unsent": _curve(counts, Priority, (UNSENT,)),
        "inflight": peaks(columns.offsets, columns.lag_s, columns.response_s, columns.outcomes, count),
        "p50_s": [one_second.p50_s for one_second in stats],
        "p95_s": [one_second.p95_s for one_second in stats],
        "p99_s": [one_second.p99_s for one_second in stats],
        "lag_p99_s": [one_second.lag_p99_s for one_second in stats],
        "priorities": {priority.label: _of_priority(counts, stats, priority) for priority in Priority},
    }


def exact_percentile(rising: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values: the least value that is not below this share of them.

    Returns:
        The value to the microsecond; None without values.
    """
    return rounded(rising[rank(share, len(rising)) - 1]) if rising else None


def _of_priority(
    counts: Sequence[Counter[tuple[int, int]]], stats: Sequence[_SecondStats], priority: Priority
) -> PrioritySeconds:
    one = (priority,)
    return {
        "planned": _curve(counts, one, (*RequestResult, UNSENT)),
        "served": _curve(counts, one, (RequestResult.OK, RequestResult.DEGRADED)),
        "limited": _curve(counts, one, (RequestResult.LIMITED,)),
        "shed": _curve(counts, one, (RequestResult.SHED,)),
        "failed": _curve(counts, one, FAILED),
        "dropped": _curve(counts, one, (RequestResult.DROPPED,)),
        "unsent": _curve(counts, one, (UNSENT,)),
        "p95_s": [one_second.by_priority[priority] for one_second in stats],
    }


def _curve(
    counts: Sequence[Counter[tuple[int, int]]], priorities: Iterable[int], outcomes: Iterable[int]
) -> list[int]:
    wanted = [(priority, outcome) for priority in priorities for outcome in outcomes]
    return [sum(tally.get(key, 0) for key in wanted) for tally in counts]


def _second_stats(columns: _Columns, span: slice) -> _SecondStats:
    served: tuple[list[float], ...] = tuple([] for _ in Priority)
    last_served = RequestResult.DEGRADED.value
    rows = zip(columns.outcomes[span], columns.priorities[span], columns.response_s[span], strict=True)
    for outcome, priority, response_s in rows:
        if outcome <= last_served:
            served[priority].append(response_s)
    for responses in served:
        responses.sort()
    whole = sorted(chain.from_iterable(served))  # already rising by priority, which is quick to merge
    lag = sorted([lag_s for lag_s in columns.lag_s[span] if not math.isnan(lag_s)])
    return _SecondStats(
        exact_percentile(whole, 0.5),
        exact_percentile(whole, 0.95),
        exact_percentile(whole, 0.99),
        exact_percentile(lag, 0.99),
        tuple(exact_percentile(responses, 0.95) for responses in served),
    )
