"""Counters of a throttle: requests by priority and result, durations, and oddities."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from autoglm_throttle.types import Outcome, Priority, Reason

# Rejections that a fallback may replace. A rejection by the user-limit store is not: that mode must count
# every admitted request.
REPLACEABLE = (Reason.GPU, Reason.QUEUE, Reason.BREAKER)

# OpenTelemetry's buckets for HTTP durations, with 2 s (the alert threshold must be an edge) and longer ones
# for inference.
DURATION_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0),
)

# Rejections by a user limit that are kept: they name the users limited most.
LIMITED_USERS = 1_000

# Routes whose rejections are counted apart: a service may make up their names.
MOST_REJECTING = 500

ODDITIES = (  # Names of handled and counted oddities: a closed set, also the metric label
    *("behind_proxy", "identify_failed", "disconnected_in_queue", "malformed_deadline"),
    *("malformed_scope", "unknown_priority", "body_timeout", "slow_reader", "nginx_flags"),
)


class Exemplar(NamedTuple):
    """A traced request, as an example of its bucket."""

    trace_id: str
    span_id: str
    duration_s: float
    wall_s: float  # Unix time of its end


@dataclass(slots=True)
class DurationHistogram:
    """Histogram of durations in `DURATION_BUCKETS_S`.

    An edge belongs to the bucket below it; the last count holds durations above all edges.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_S) + 1))  # Not cumulative
    total_s: float = 0.0
    # Bucket of the last duration with its edges: the next one is mostly in it, too.
    last: int = 0
    above_s: float = -math.inf
    up_to_s: float = DURATION_BUCKETS_S[0]
    # Bucket -> its newest traced request. Written without the lock: an entry is replaced as a whole.
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def record(self, duration_s: float) -> None:
        """Count one duration."""
        if not self.above_s < duration_s <= self.up_to_s:
            self.last = last = bisect_left(DURATION_BUCKETS_S, duration_s)
            self.above_s = DURATION_BUCKETS_S[last - 1] if last else -math.inf
            self.up_to_s = DURATION_BUCKETS_S[last] if last < len(DURATION_BUCKETS_S) else math.inf
        self.counts[self.last] += 1
        self.total_s += duration_s

    def copy(self) -> DurationHistogram:
        """Return the counts and exemplars as they are now."""
        return DurationHistogram(self.counts.copy(), self.total_s, exemplars=self.exemplars.copy())

    def add_exemplar(self, exemplar: Exemplar) -> None:
        """Keep a traced request that was recorded, in place of an earlier one of its bucket."""
        self.exemplars[bisect_left(DURATION_BUCKETS_S, exemplar.duration_s)] = exemplar


class PriorityCounters:
    """The counters of one priority."""

    __slots__ = (
        *("admitted", "degraded", "durations", "first_token", "inter_token", "others", "queue_time"),
        *("rejected", "would_reject"),
    )

    def __init__(self) -> None:
        self.admitted: int = 0
        self.rejected: dict[Reason, int] = {reason: 0 for reason in Reason if reason is not Reason.OK}
        self.would_reject: dict[Reason, int] = self.rejected.copy()
        # Answered by a fallback instead of a permit.
        self.degraded: dict[Reason, int] = dict.fromkeys(REPLACEABLE, 0)
        # Outcomes other than success, which are the rest of the durations.
        self.others: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.durations: DurationHistogram = DurationHistogram()  # Of all but neutral ones
        self.queue_time: DurationHistogram = DurationHistogram()
        # Of event streams, recorded without the lock: of two threads at once one event may be lost.
        self.first_token: DurationHistogram = DurationHistogram()
        self.inter_token: DurationHistogram = DurationHistogram()

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Settled requests by outcome."""
        others = self.others
        measured = sum(self.durations.counts)
        return others | {Outcome.SUCCESS: measured - others[Outcome.FAILURE] - others[Outcome.SLOW]}

    @property
    def active(self) -> int:
        """Admitted and not yet settled."""
        return self.admitted - sum(self.outcomes.values())


class Counters:
    """All counters of one throttle; used under its lock."""

    __slots__ = ("chunks", "classes", "exempt", "limited_users", "oddities", "rejections", "stale_results")

    def __init__(self) -> None:
        self.classes: tuple[PriorityCounters, ...] = tuple(PriorityCounters() for _ in Priority)
        self.exempt: int = 0
        # Streamed chunks. Counted without the lock: of two concurrent increments one may be lost.
        self.chunks: int = 0
        # Users of the newest rejections by a user limit, the newest last.
        self.limited_users: deque[str] = deque(maxlen=LIMITED_USERS)
        # Name of the route, None without one -> name of the limit that decided -> rejections.
        self.rejections: dict[str | None, dict[str, int]] = {None: {}}
        self.stale_results: int = 0
        self.oddities: dict[str, int] = dict.fromkeys(ODDITIES, 0)

    def count_rejection(self, route: str | None, limit: str) -> None:
        """Count a rejection of a route by a limit."""
        if route not in self.rejections:
            if len(self.rejections) >= MOST_REJECTING:
                route = None
            else:
                self.rejections[route] = {}
        limits = self.rejections[route]
        limits[limit] = limits.get(limit, 0) + 1

    @property
    def admitted(self) -> int:
        """Admitted requests of all priorities."""
        return sum(row.admitted for row in self.classes)

    @property
    def active(self) -> int:
        """Admitted and not yet settled requests of all priorities."""
        return sum(row.active for row in self.classes)
