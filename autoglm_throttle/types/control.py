"""Values of the control loop: policies, causes, and the reports that it exchanges with the limiter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

# Requests that wait inside an engine, as a share of those that it runs: without any, a slot that becomes free
# would be idle until the next request has arrived there.
ENGINE_SPARE = 0.125


class Policy(StrEnum):
    """Policy of the control loop."""

    ADAPTIVE = "adaptive"
    """The concurrency limit, with the tier table armed only by the limiter's own reports."""
    TIERS = "tiers"  # the tier table taken literally, with or without traffic
    CONCURRENCY = "concurrency"  # the concurrency limit alone: needs no telemetry
    FIXED = "fixed"  # the nominal rates


class Signal(StrEnum):
    """Signal compared with the bands of the tier table."""

    AUTO = "auto"  # pressure where an engine reports its queue, else utilization
    UTILIZATION = "utilization"
    PRESSURE = "pressure"  # 100 % times the largest of several ratios of a load to its target


class MissingTelemetryMode(StrEnum):
    """The assumption once telemetry has been missing for long (``GPU_UNKNOWN``)."""

    OPEN = "open"
    LAST = "last"
    CONSERVATIVE = "conservative"
    CLOSED = "closed"


class AggregateMode(StrEnum):
    """How the utilizations of several devices are aggregated."""

    WEIGHTED = "weighted"
    MEAN = "mean"
    MAX = "max"


class TelemetryState(StrEnum):
    """Reliability of the newest GPU sample."""

    STARTING = "starting"
    FRESH = "fresh"
    LATE = "late"
    STALE = "stale"
    BLIND = "blind"
    NONE = "none"  # no source exists: no sample is expected, so none is missing


class ControlCause(StrEnum):
    """The cause of the control state in force."""

    CALM = "calm"
    STRIKE = "strike"
    TIER = "tier"
    HELD = "held"
    RELEASED = "released"
    STALE = "stale"
    BLIND = "blind"
    LOST = "lost"
    STALLED = "stalled"  # a device is busy without any output
    DEGRADED = "degraded"  # the throughput of a device is far below that of the same load before
    NO_DEVICE = "no_device"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class LimiterReport:
    """Report of the concurrency limiter to the controller: is there more work than the service finishes?"""

    confirmed: bool = False
    """Whether a request was rejected since the last report, or waits in the queue now."""
    service_rps: float | None = None
    """Requests that the service finishes per second, at first a lower bound; None: none has ended yet."""
    in_flight: int = 0
    limit: float = math.inf  # maximum of requests in flight, all bounds considered
    processes: int = 1  # processes that share the nominal rates


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Capacity of the inference engine behind this process; of several API servers, the part of this one."""

    slots: int | None = None  # requests that it runs at a time, >= 1; None: not known
    most: float = math.inf  # requests, running or queued, above which the engine itself rejects
    unfinished: Callable[[], int] = int  # returns the requests of this process in it now; never raises
    processes: int = 1  # API servers of the engine, which share the limits that are kept in memory

    @property
    def ceiling(self) -> float:
        """Requests in flight at most: as many as the engine runs, and a few that wait inside."""
        slots = math.inf if self.slots is None else self.slots + max(1, round(ENGINE_SPARE * self.slots))
        return min(slots, self.most)


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """Measurements of our own requests: the part of the pressure that no GPU reports."""

    p95_s: float | None = None
    """95th percentile of recently finished requests, queue time included; None if too few have ended."""
    slo_s: float | None = None
    """The objective for it; None if the service misses the objective even without load."""
    in_flight: int = 0  # requests admitted and not yet ended
    waiting: int = 0  # requests in our queue
    at_limit: bool = False  # whether the concurrency limit is reached
    completed_total: int = 0
    """Successful requests; only grows. Failures are no progress: a hang ends in time-outs."""
    chunks_total: int = 0
    """Response chunks streamed to clients; only grows. For a language model, close to its tokens."""
    host_load: float | None = None
    """Runnable processes per core (the load average of a minute); None where it is not available."""
    host_iowait: float | None = None
    """Share of the time that cores spent waiting for a disk, 0..1; None where it is not available."""
    host_pressure: float | None = None
    """Share of the last 10 s in which a process waited for a core, 0..1; None where it is not available."""
    host_throttled: float | None = None
    """Share of periods in which the control group used up its cores, 0..1; None without such a limit."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """Output of the controller: the share of the nominal rates to refill now."""

    factor: float  # 0..1, admitted share of the nominal rates; 0 rejects all new requests
    tier: float  # the table's own factor in force, before lost capacity and staleness
    load: float | None  # 0..1, or None when it is not known or the policy ignores it
    since_s: float  # when factor last changed
    cause: ControlCause
    telemetry: TelemetryState
    valid_until_s: float  # valid until this instant; then the controller must be called again
    may_rise_at_s: float = 0.0  # while factor is 0: the instant of the first sample that could raise it
    ceilings: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """For high, mid and low: 0..1, multiplies the refill rate of the class."""
    budget_rps: float | None = None
    """Requests per second for all classes together while the policy ``adaptive`` reduces or holds."""
    table_factor: float = 1.0  # factor of the tier table for the newest signal, applied or not
    armed: bool = False
    """Whether the table may act: under ``adaptive`` only while the limiter reports waiting requests."""
    signal: Signal = Signal.UTILIZATION  # the signal compared with the bands
    term: str = "utilization"
    """The deciding term of the signal: ``utilization``, or the largest one of the pressure."""


@dataclass(frozen=True, slots=True)
class WorkClassView:
    """Figures of one work class at one moment."""

    name: str
    rate_rps: float  # measured ends per second
    mean_s: float | None  # recent mean time in the service; None before the first completion
    unloaded_s: float | None  # latency without load; None until it is known
    negligible: bool  # whether its requests are so short beside the others that they need no slot
    in_flight: int  # paused requests included


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyView:
    """Figures of a concurrency limit at one moment; the defaults mean "not measured"."""

    limit: float  # requests that may be in flight
    in_flight: int
    paused: int  # requests that have given their slot back for a while
    waiting: tuple[int, int, int] = (0, 0, 0)  # queued tickets: high, mid, low
    service_rps: float | None = None
    """Requests finished per second, a lower bound until the limit was reached; None: no completion yet."""
    demand_rps: tuple[float, float, float] = (
        0.0,
        0.0,
        0.0,
    )  # arrivals per second: high, mid, low, admitted or not
    latency_s: float  # recent mean time from slot to end
    unloaded_s: float | None = None  # mean latency without load; None before the first completion
    budget_s: float = math.inf  # seconds that a request may spend in the service
    slo_s: float  # the objective in force
    slo_learned: bool = False  # whether it is learned, since none is set
    memory_cap: float = (
        math.inf
    )  # requests in flight that the memory of the devices allows; infinite: not learned yet
    memory_blind: bool = False
    """Whether the engine allocates its memory in advance, so that the fill carries no information."""
    slo_unreachable: bool = False  # whether a request takes more than half of the objective even without load
    retry_backlog_s: float = 0.0  # seconds until the last turn that was told to a rejected request
    work_classes: tuple[WorkClassView, ...] = ()  # the work classes with most requests
    pressure: float
    """Demand as a share of the service rate; before it is measured, in flight as a share of the limit."""
