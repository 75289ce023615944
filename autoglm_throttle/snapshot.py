"""What the throttle counts, and the immutable picture of it that metrics, logs and pages read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Literal

from autoglm_throttle.limiting.gate import GateView
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import (
    Clock,
    GpuSample,
    GpuView,
    Level,
    Outcome,
    Policy,
    Priority,
    Reason,
    Regime,
    Rung,
    State,
)

if TYPE_CHECKING:
    from autoglm_throttle.control.quota import QuotaView
    from autoglm_throttle.model import BreakerView

DecisionName = Literal["admitted", "limited", "rejected", "degraded", "exempt"]

LIMITED = frozenset({Reason.RATE, Reason.USER, Reason.TOO_LARGE})
"""Refusals that are the caller's own limit; all others are our load."""

REPLACEABLE = (Reason.GPU, Reason.QUEUE, Reason.BREAKER)
"""Refusals in place of which a fallback may answer. Not that of the store of user limits: it was asked to let
nobody pass unseen."""

DURATION_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0),
)
"""OpenTelemetry's buckets for HTTP durations, with 2 s (the alert threshold must be an edge) and longer ones
for inference."""


def decision_name(reason: Reason) -> DecisionName:
    """``limited`` for the caller's own limit, ``rejected`` for our load, else ``admitted``."""
    if reason is Reason.OK:
        return "admitted"
    return "limited" if reason in LIMITED else "rejected"


@dataclass(frozen=True, slots=True)
class DurationCounts:
    """One histogram at the moment of the snapshot."""

    counts: tuple[int, ...]
    """One more than `DURATION_BUCKETS_S`; not cumulative."""
    total_s: float


class Histogram:
    """Durations in `DURATION_BUCKETS_S`.

    An edge belongs to the bucket below it; the last count is of those above all edges.
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
        """The counts as they are now."""
        return DurationCounts(tuple(self.counts), self.total_s)


HINTS = (
    *("behind_proxy", "identify_failed", "left_in_line", "malformed_deadline"),
    *("malformed_scope", "unknown_priority"),
)
"""Names of oddities that are dealt with and counted: a closed set, also the metric label."""


class ClassRow:
    """What is counted for one priority."""

    __slots__ = ("admitted", "degraded", "durations", "outcomes", "queue_time", "refused", "would_refuse")

    def __init__(self) -> None:
        self.admitted: int = 0
        self.refused: dict[Reason, int] = {reason: 0 for reason in Reason if reason is not Reason.OK}
        self.would_refuse: dict[Reason, int] = self.refused.copy()
        self.degraded: dict[Reason, int] = dict.fromkeys(REPLACEABLE, 0)
        """Answered by a fallback instead of a permit."""
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.durations: Histogram = Histogram()
        self.queue_time: Histogram = Histogram()

    @property
    def active(self) -> int:
        """Admitted and not yet settled."""
        return self.admitted - sum(self.outcomes.values())


class Rows:
    """Every counting row of one throttle, made at the start, and the lock under which they are touched.

    The lock is re-entrant: the garbage collector may run under it and close an abandoned generator or
    coroutine, whose permit is then settled in the midst of another request of the same thread.

    Args:
        clock: monotonic seconds.
    """

    __slots__ = (
        *("acquire", "chunks", "classes", "clock", "exempt"),
        *("hints", "lock", "release", "stale_results"),
    )

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self.lock: RLock = RLock()
        self.acquire: Callable[[], bool] = self.lock.acquire
        self.release: Callable[[], None] = self.lock.release
        self.classes: tuple[ClassRow, ...] = tuple(ClassRow() for _ in Priority)
        self.exempt: int = 0
        self.chunks: int = 0
        """Parts of streamed answers. Counted without the lock: of two threads at once one may be lost."""
        self.stale_results: int = 0
        self.hints: dict[str, int] = dict.fromkeys(HINTS, 0)

    def renew(self, other: Rows) -> None:
        """Take the lock of others: in a fork, the parent's thread may hold this one for ever."""
        self.lock, self.acquire, self.release = other.lock, other.acquire, other.release


SourceState = Literal["starting", "reading", "failing", "hanging", "crashed", "misconfigured", "no_source"]
"""How the reading of one source of GPU samples goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source of GPU samples at one moment. Its counts only grow, except across a fork."""

    name: str
    state: SourceState
    last_error: str
    """The newest failure, kept after a recovery, or what was tried where nothing was found; else empty."""
    failures: int
    """Reads that gave nothing."""
    overruns: int
    """Reads that took longer than they may."""
    implausible: int
    """Fields emptied because their value cannot be."""
    crashes: int
    """Times its thread was started again."""
    interval_s: float
    """Promised seconds between two reads."""
    age_s: float | None
    """Seconds since the newest read that gave samples; None: none has."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet that keeps the priority rates together, at one moment."""

    members: int
    """Living processes, this one among them; 1 before the store has answered."""
    up: bool
    """Whether the store answers; while it does not, each process goes by its part of the rates."""
    calls: int
    """Round trips for leases and signs of life; only grows."""
    failures: int
    """Those without an answer; only grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardsView:
    """Every guard at one moment. Counts only grow, except across a fork."""

    breakers: tuple[BreakerView, ...]
    """In the order in which they were first asked for."""
    level: Level
    """The step of the ladder in force."""
    load: float | None
    """What the ladder last saw, 0..1; None: not known."""
    degraded: Mapping[tuple[str, Rung, str], int]
    """Answers that a dependency has not given, by guard, what they were made of, and why."""
    transitions: Mapping[tuple[str, State], int]
    """Changes of state, by guard and the new state."""
    store_up: bool | None
    """Whether the store of shared breakers answers; None where each process goes by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The throttle at one moment. Counters only grow, except across a fork, where a child starts at 0."""

    taken_at_s: float
    """Monotonic."""
    taken_at_wall_s: float
    """Unix time."""
    policy: Policy
    regime: Regime
    ready: bool
    """False while no usable card is left, or while all that are left are stalled, by telemetry that can still
    be believed; the same under every policy."""
    requests: Mapping[tuple[Priority, DecisionName, Reason], int]
    exempt: int
    active: Mapping[Priority, int]
    """Admitted and not yet settled."""
    outcomes: Mapping[tuple[Priority, Outcome], int]
    durations: Mapping[Priority, DurationCounts]
    """Of admitted requests that did not end ``neutral``."""
    gate: GateView | None
    """The limit in flight and the line; None where nothing limits what is in flight."""
    queue_time: Mapping[Priority, DurationCounts]
    """Time in the line of those that stood in it, whether or not their turn came."""
    pressure: Mapping[str, float]
    """Term -> load over its target, 1 at the target; only terms that are known."""
    would_refuse: Mapping[tuple[Priority, Reason], int]
    """Admitted by a dry run alone."""
    dry_run: bool
    """Whether refusals are only counted."""
    rate_limit_rps: Mapping[Priority, float]
    """Refill rate now."""
    tokens: Mapping[Priority, float]
    users: int
    """Users remembered by the window in memory; of a shared store, those counted here while it was away."""
    fleet: FleetView | None
    """The fleet that keeps the priority rates; None where this process keeps its own."""
    store: StoreView | None
    """The shared store of user limits; None where they are kept in memory."""
    view: GpuView | None
    """All devices and engines as one value, with a verdict for each card; None before the first sample."""
    sources: tuple[SourceView, ...]
    """Where samples come from; none with ``GPU=none``."""
    last_sample_wall_s: float | None
    """Unix time of the newest sample."""
    controller_errors: int
    """Failed or overdue reads, and fields that were not plausible."""
    quota: QuotaView | None = None
    """How full the memory is that requests can fill, and who may fill it; None without ``QUOTAS``."""
    guards: GuardsView | None = None
    """Calls that leave the process, and what was degraded; None before the first guard."""
    stale_results: int
    """Permits settled a second time."""
    hints: Mapping[str, int]
    """What was seen and quietly dealt with, by name: unknown priorities, failing ``identify`` calls."""

    @property
    def devices(self) -> tuple[GpuSample, ...]:
        """Every known device and engine, lost ones included."""
        return () if self.view is None else self.view.devices
