"""Results of a run by second of the intended start, and the peak number of requests in flight."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from typing import cast

from autoglm_throttle.traffic.histogram import rank
from autoglm_throttle.traffic.plan import LoadPlan
from autoglm_throttle.traffic.report.schema import Seconds
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


def seconds(plan: LoadPlan, log: RequestLog) -> Seconds:
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
        wanted = {
            name: [counts.get(key, zeros) for key in product(priorities, OUTCOMES[name])] for name in names
        }
        return {name: list(map(sum, zip(*columns, strict=True))) for name, columns in wanted.items()}

    whole = {
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
    return cast("Seconds", whole)


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
