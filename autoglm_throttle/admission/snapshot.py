"""Counters of a throttle, and the immutable snapshot of it for metrics, logs and pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Literal

from autoglm_throttle.store.shared_limits import StoreView
from autoglm_throttle.types import (
    BreakerState,
    Clock,
    ConcurrencyView,
    ControlState,
    DegradationLevel,
    FallbackKind,
    GpuSample,
    GpuView,
    Outcome,
    Policy,
    Priority,
    Reason,
)

if TYPE_CHECKING:
    from autoglm_throttle.control.quota import QuotaView
    from autoglm_throttle.types import BreakerView

DecisionLabel = Literal["admitted", "limited", "shed", "degraded", "exempt"]

LIMITED = frozenset({Reason.RATE, Reason.USER, Reason.TOO_LARGE})
"""Rejections by the caller's own limit; all others are caused by our load."""

REPLACEABLE = (Reason.GPU, Reason.QUEUE, Reason.BREAKER)
"""Rejections that a fallback may replace. A rejection by the user-limit store is not: that mode must count
every admitted request.
"""

DURATION_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0),
)
"""OpenTelemetry's buckets for HTTP durations, with 2 s (the alert threshold must be an edge) and longer ones
for inference.
"""


def decision_label(reason: Reason) -> DecisionLabel:
    """Return ``limited`` for the caller's own limit, ``shed`` for our load, else ``admitted``."""
    if reason is Reason.OK:
        return "admitted"
    return "limited" if reason in LIMITED else "shed"


@dataclass(frozen=True, slots=True)
class DurationCounts:
    """One histogram at the time of the snapshot."""

    counts: tuple[int, ...]
    """One more than `DURATION_BUCKETS_S`; not cumulative."""
    total_s: float


class DurationHistogram:
    """Histogram of durations in `DURATION_BUCKETS_S`.

    An edge belongs to the bucket below it; the last count holds durations above all edges.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.total_s: float = 0.0

    def record(self, duration_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        self.total_s += duration_s

    def copy(self) -> DurationCounts:
        """Return the counts as they are now."""
        return DurationCounts(tuple(self.counts), self.total_s)


ODDITIES = (
    *("behind_proxy", "identify_failed", "disconnected_in_queue", "malformed_deadline"),
    *("malformed_scope", "unknown_priority"),
)
"""Names of handled and counted oddities: a closed set, also the metric label."""


class PriorityCounters:
    """The counters of one priority."""

    __slots__ = ("admitted", "degraded", "durations", "outcomes", "queue_time", "rejected", "would_reject")

    def __init__(self) -> None:
        self.admitted: int = 0
        self.rejected: dict[Reason, int] = {reason: 0 for reason in Reason if reason is not Reason.OK}
        self.would_reject: dict[Reason, int] = self.rejected.copy()
        self.degraded: dict[Reason, int] = dict.fromkeys(REPLACEABLE, 0)
        """Answered by a fallback instead of a permit."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.durations: DurationHistogram = DurationHistogram()
        self.queue_time: DurationHistogram = DurationHistogram()

    @property
    def active(self) -> int:
        """Admitted and not yet settled."""
        return self.admitted - sum(self.outcomes.values())


class Counters:
    """All counters of one throttle, and their lock.

    The lock is re-entrant: the garbage collector may run under it and close an abandoned generator or
    coroutine. Its permit is then settled in the middle of another request of the same thread.

    Args:
        clock: monotonic seconds.
    """

    __slots__ = (
        *("acquire", "chunks", "classes", "clock", "exempt"),
        *("oddities", "lock", "release", "stale_results"),
    )

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self.lock: RLock = RLock()
        # Bound methods for the hot path: `with self.lock` takes twice as long.
        self.acquire: Callable[[], bool] = self.lock.acquire
        self.release: Callable[[], None] = self.lock.release
        self.classes: tuple[PriorityCounters, ...] = tuple(PriorityCounters() for _ in Priority)
        self.exempt: int = 0
        self.chunks: int = 0
        """Streamed chunks. Counted without the lock: of two concurrent increments one may be lost."""
        self.stale_results: int = 0
        self.oddities: dict[str, int] = dict.fromkeys(ODDITIES, 0)

    def adopt_lock(self, other: Counters) -> None:
        """Use another lock: after a fork, a thread of the parent may hold this one forever."""
        self.lock, self.acquire, self.release = other.lock, other.acquire, other.release


SourceState = Literal["starting", "reading", "failing", "hanging", "crashed", "misconfigured", "no_source"]
"""State of reading one source of GPU samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source of GPU samples at one moment. Its counts only grow, except across a fork."""

    name: str
    state: SourceState
    last_error: str
    """The newest failure, kept after a recovery, or the attempts of a failed discovery; else empty."""
    failures: int
    """Reads without samples."""
    overruns: int
    """Reads that exceeded their deadline."""
    implausible: int
    """Fields emptied because their value is impossible."""
    crashes: int
    """Restarts of its thread."""
    interval_s: float
    """Promised seconds between two reads."""
    age_s: float | None
    """Seconds since the newest read with samples; None: there was none."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet that shares the priority rates, at one moment."""

    members: int
    """Living processes, this one included; 1 before the store has answered."""
    up: bool
    """Whether the store answers; during an outage each process uses its part of the rates."""
    calls: int
    """Round trips for leases and heartbeats; only grows."""
    failures: int
    """Round trips without a reply; only grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardsView:
    """Every guard at one moment. Counts only grow, except across a fork."""

    breakers: tuple[BreakerView, ...]
    """In the order of their first use."""
    level: DegradationLevel
    """The degradation level in force."""
    load: float | None
    """The newest load used for the level, 0..1; None: not known."""
    degraded: Mapping[tuple[str, FallbackKind, str], int]
    """Answers produced without the dependency, by guard, fallback kind and cause."""
    transitions: Mapping[tuple[str, BreakerState], int]
    """State changes, by guard and new state."""
    store_up: bool | None
    """Whether the store of shared breakers answers; None where breakers are local to the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The throttle at one moment. Counters only grow, except across a fork, where a child starts at 0."""

    taken_at_s: float
    """Monotonic."""
    taken_at_wall_s: float
    """Unix time."""
    policy: Policy
    control: ControlState
    ready: bool
    """False while no usable device is left, or all usable devices are stalled, by telemetry that is still
    reliable; the same under every policy.
    """
    requests: Mapping[tuple[Priority, DecisionLabel, Reason], int]
    exempt: int
    active: Mapping[Priority, int]
    """Admitted and not yet settled."""
    outcomes: Mapping[tuple[Priority, Outcome], int]
    durations: Mapping[Priority, DurationCounts]
    """Durations of admitted requests that did not end ``neutral``."""
    concurrency: ConcurrencyView | None
    """The concurrency limit and the queue; None where requests in flight are not limited."""
    queue_time: Mapping[Priority, DurationCounts]
    """Queue time of all queued requests, admitted or not."""
    pressure: Mapping[str, float]
    """Term -> load over its target, 1 at the target; only terms that are known."""
    would_reject: Mapping[tuple[Priority, Reason], int]
    """Requests admitted only because of a dry run."""
    dry_run: bool
    """Whether rejections are only counted."""
    rate_limit_rps: Mapping[Priority, float]
    """Refill rate now."""
    tokens: Mapping[Priority, float]
    users: int
    """Users in the in-memory table; with a shared store, users counted locally during its outage."""
    fleet: FleetView | None
    """The fleet that shares the priority rates; None where rates are local to this process."""
    store: StoreView | None
    """The shared store of user limits; None where they are kept in memory."""
    view: GpuView | None
    """All devices and engines as one value, with a verdict for each device; None before the first sample."""
    sources: tuple[SourceView, ...]
    """The telemetry sources; empty with ``GPU=none``."""
    last_sample_wall_s: float | None
    """Unix time of the newest sample."""
    controller_errors: int
    """Failed or overdue reads, and implausible fields."""
    quota: QuotaView | None = None
    """Fill of the memory available to requests, and the quotas on it; None without ``QUOTAS``."""
    guards: GuardsView | None = None
    """Guarded outbound calls and degraded answers; None before the first guard."""
    stale_results: int
    """Permits settled a second time."""
    oddities: Mapping[str, int]
    """Handled oddities by name: unknown priorities, failing ``identify`` calls."""

    @property
    def devices(self) -> tuple[GpuSample, ...]:
        """Every known device and engine, lost ones included."""
        return () if self.view is None else self.view.devices
