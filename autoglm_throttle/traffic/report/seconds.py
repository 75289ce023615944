"""Results of a run by second of the intended start, and the peak number of requests in flight."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple, cast

from autoglm_throttle.traffic.histogram import rank
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.schema import PrioritySeconds, Seconds
from autoglm_throttle.traffic.report.tally import rounded
from autoglm_throttle.traffic.request_log import UNSENT, RequestLog, RequestResult
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

NOT_SERVED = ("limited", "shed", "failed", "dropped", "unsent")


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
    """Build the curves of a run in which every request has ended or was skipped."""
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

    whole = {
        **_curves(counts, Priority, ("planned", "ok", "degraded", *NOT_SERVED)),
        "inflight": peaks(columns.offsets, columns.lag_s, columns.response_s, columns.outcomes, count),
        "p50_s": [exact_percentile(rising, 0.5) for rising in every],
        "p95_s": [exact_percentile(rising, 0.95) for rising in every],
        "p99_s": [exact_percentile(rising, 0.99) for rising in every],
        "lag_p99_s": [exact_percentile(rising, 0.99) for rising in lags],
        "priorities": {priority.label: _of_priority(counts, served, priority) for priority in Priority},
    }
    return cast("Seconds", whole)


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
    p95_s = [exact_percentile(responses[priority], 0.95) for responses in served]
    curves = _curves(counts, (priority,), ("planned", "served", *NOT_SERVED))
    return cast("PrioritySeconds", {**curves, "p95_s": p95_s})


def _curves(
    counts: Sequence[Counter[tuple[int, int]]], priorities: Iterable[int], names: Iterable[str]
) -> dict[str, list[int]]:
    """Count results by second, for each curve."""
    wanted = {name: list(product(priorities, OUTCOMES[name])) for name in names}
    return {name: [sum(map(tally.__getitem__, keys)) for tally in counts] for name, keys in wanted.items()}


def peaks(
    offsets: Sequence[float],
    lag_s: Sequence[float],
    response_s: Sequence[float],
    outcomes: Sequence[int],
    count: int,
) -> list[int]:
    """Return the peak in flight within each of the first ``count`` seconds of the run.

    A request is in flight from its launch to its end, both included. A dropped or skipped request never is in
    flight. A launch without a known lag was on time.
    """
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
