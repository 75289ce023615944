"""Measures the service by its own requests: latency percentile and requests in flight."""

from __future__ import annotations

from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.control.latency import LatencyPercentile, SloReachability
from autoglm_throttle.types import Outcome, ServiceStats


class ServiceMeter:
    """Turns counters and limiter into the `ServiceStats` of one moment.

    Args:
        settlement: the counters and the limiter.
        limits_concurrency: whether the limiter knows the latency without load, and so whether the objective
            is within reach.
    """

    __slots__ = ("_latency", "_limits_concurrency", "_settlement", "_slo_tracker")

    def __init__(self, settlement: Settlement, *, limits_concurrency: bool) -> None:
        self._settlement = settlement
        self._limits_concurrency = limits_concurrency
        self._latency = LatencyPercentile(DURATION_BUCKETS_S)
        self._slo_tracker = SloReachability()

    def stats(self, now: float) -> ServiceStats:
        """Measure; called under the lock, once for each sample."""
        counters, limiter = self._settlement.counters, self._settlement.limiter
        counts = [
            sum(column) for column in zip(*(row.durations.counts for row in counters.classes), strict=True)
        ]
        p95_s = self._latency.update(counts, now)
        slo_s = limiter.slo_s
        met = self._slo_tracker.update(p95_s, slo_s, now)
        in_reach = not limiter.view(now).slo_unreachable if self._limits_concurrency else met
        ended = sum(row.outcomes[Outcome.SUCCESS] + row.outcomes[Outcome.SLOW] for row in counters.classes)
        return ServiceStats(
            p95_s=p95_s,
            slo_s=slo_s if in_reach else None,
            in_flight=limiter.in_flight,
            waiting=limiter.waiting,
            at_limit=limiter.in_flight >= limiter.limit,
            completed_total=ended,
            chunks_total=counters.chunks,
        )
