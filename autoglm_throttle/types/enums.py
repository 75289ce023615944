"""Enums of settings, reasons and causes; their values are also metric labels."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Reason(StrEnum):
    """Reason of a decision on a request: a closed set, also the metric label."""

    OK = "ok"
    RATE = "rate"
    USER = "user"
    TOO_LARGE = "too_large"
    GPU = "gpu"
    QUEUE = "queue"
    BREAKER = "breaker"
    """The breaker around the app itself is open."""
    STORE = "store"
    """The shared store of user limits is unavailable, and ``REDIS_ON_ERROR=deny``."""


LimitedReason = Literal["rate", "user", "too_large"]
"""The reasons of a rejection with 429 or 413: the caller's own limit."""

ShedReason = Literal["gpu", "queue", "breaker", "store"]
"""The reasons of a rejection with 503: the load of the service, an open breaker, an unavailable store."""


class Outcome(StrEnum):
    """Outcome of an admitted request, or of a guarded call."""

    SUCCESS = "success"
    FAILURE = "failure"
    SLOW = "slow"
    """A success that exceeded its time limit."""
    NEUTRAL = "neutral"
    """No evidence about the service: the client disconnected, or the error was the caller's own."""


PolicyName = Literal["adaptive", "tiers", "concurrency", "fixed"]


class Policy(StrEnum):
    """Policy of the control loop."""

    ADAPTIVE = "adaptive"
    """The concurrency limit, with the tier table armed only by the limiter's own reports."""
    TIERS = "tiers"
    """The tier table taken literally, with or without traffic."""
    CONCURRENCY = "concurrency"
    """The concurrency limit alone: needs no telemetry."""
    FIXED = "fixed"
    """The nominal rates."""


SignalName = Literal["auto", "utilization", "pressure"]


class Signal(StrEnum):
    """Signal compared with the bands of the tier table."""

    AUTO = "auto"
    """Pressure where an engine reports its queue, else utilization."""
    UTILIZATION = "utilization"
    PRESSURE = "pressure"
    """100 % times the largest of several ratios of a load to its target."""


WebSocketName = Literal["rate", "slot"]


class WebSocketMode(StrEnum):
    """How an open websocket counts."""

    RATE = "rate"
    """Charged once, when it connects."""
    SLOT = "slot"
    """Charged when it connects, and in flight as long as it is open."""


FairnessName = Literal["user", "fifo"]


class Fairness(StrEnum):
    """Order of the queued requests of one priority."""

    USER = "user"
    """The users in turn, the one served least first."""
    FIFO = "fifo"
    """In order of arrival."""


SlotName = Literal["request", "stream", "none"]


class SlotUse(StrEnum):
    """When a request of a route holds a slot of the concurrency limit."""

    REQUEST = "request"
    """While the app works; an event stream not while it is idle."""
    STREAM = "stream"
    """The same for a stream of any type; its body is not awaited before it gets the slot."""
    NONE = "none"
    """Never: it waits for others only, or costs nothing."""


BorrowName = Literal["off", "down", "any"]


class BorrowMode(StrEnum):
    """Other classes that lend tokens when a bucket is short."""

    OFF = "off"
    DOWN = "down"
    ANY = "any"


StoreFailureName = Literal["local", "allow", "deny"]


class StoreFailureMode(StrEnum):
    """How user limits are decided while their shared store is unavailable (``REDIS_ON_ERROR``)."""

    LOCAL = "local"
    """By each process, on its fair share of the limits."""
    ALLOW = "allow"
    """All requests are admitted."""
    DENY = "deny"
    """All requests are rejected with 503."""


MissingTelemetryName = Literal["open", "last", "conservative", "closed"]


class MissingTelemetryMode(StrEnum):
    """The assumption once telemetry has been missing for long (``GPU_UNKNOWN``)."""

    OPEN = "open"
    LAST = "last"
    CONSERVATIVE = "conservative"
    CLOSED = "closed"


AggregateName = Literal["weighted", "mean", "max"]


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
    NONE = "none"
    """No source exists: no sample is expected, so none is missing."""


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
    STALLED = "stalled"
    """A device is busy without any output."""
    DEGRADED = "degraded"
    """The throughput of a device is far below that of the same load before."""
    NO_DEVICE = "no_device"
    POLICY = "policy"
