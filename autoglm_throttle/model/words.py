"""Closed sets of words: settings, reasons, causes; the values of metric labels."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a request was admitted or refused: a closed set, also the metric label."""

    OK = "ok"
    RATE = "rate"
    USER = "user"
    TOO_LARGE = "too_large"
    GPU = "gpu"
    QUEUE = "queue"
    BREAKER = "breaker"
    """The breaker round the app itself is open."""
    STORE = "store"
    """The shared store of user limits cannot be asked, and ``REDIS_ON_ERROR=deny``."""


class Outcome(StrEnum):
    """How an admitted request, or a guarded call, ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    SLOW = "slow"
    """A success that took longer than it may."""
    NEUTRAL = "neutral"
    """No evidence about the service: the client went away, or the mistake was the caller's own."""


class Policy(StrEnum):
    """What decides how much may come in."""

    ADAPTIVE = "adaptive"
    """The gate, with the tier table armed only by what the gate itself has seen."""
    TIERS = "tiers"
    """The tier table taken literally, with or without traffic."""
    GATE = "gate"
    """The gate alone: needs no telemetry."""
    FIXED = "fixed"
    """The nominal rates."""


class Signal(StrEnum):
    """What the bands of the tier table are laid on."""

    AUTO = "auto"
    """Pressure where an engine tells its queue, else utilization."""
    UTILIZATION = "utilization"
    PRESSURE = "pressure"
    """100 % times the largest of several ratios of a load to its target."""


class WebSockets(StrEnum):
    """How an open websocket counts."""

    RATE = "rate"
    """Charged once, when it connects."""
    SLOT = "slot"
    """Charged when it connects, and a request in flight as long as it is open."""


class Borrow(StrEnum):
    """Whose tokens a class may take when its own bucket is short."""

    OFF = "off"
    DOWN = "down"
    ANY = "any"


class OnError(StrEnum):
    """Who decides on user limits while their shared store cannot be asked (``REDIS_ON_ERROR``)."""

    LOCAL = "local"
    """Each process, on its fair share of the limits."""
    ALLOW = "allow"
    """Nobody: all are admitted."""
    DENY = "deny"
    """All are refused with 503."""


class Unknown(StrEnum):
    """What to assume once telemetry has been silent for long (``GPU_UNKNOWN``)."""

    OPEN = "open"
    LAST = "last"
    CONSERVATIVE = "conservative"
    CLOSED = "closed"


class Aggregate(StrEnum):
    """How several devices become one utilization."""

    WEIGHTED = "weighted"
    MEAN = "mean"
    MAX = "max"


class Telemetry(StrEnum):
    """How far the newest GPU sample can be believed."""

    STARTING = "starting"
    FRESH = "fresh"
    LATE = "late"
    STALE = "stale"
    BLIND = "blind"
    NONE = "none"
    """There is no source at all: nothing is expected, so nothing is missing."""


class Why(StrEnum):
    """The cause of the Regime in force."""

    CALM = "calm"
    STRIKE = "strike"
    TIER = "tier"
    HELD = "held"
    RELEASED = "released"
    STALE = "stale"
    BLIND = "blind"
    LOST = "lost"
    STALLED = "stalled"
    """A device is busy and nothing comes out of it."""
    DEGRADED = "degraded"
    """Far less comes out of a device than under the same load before."""
    NO_DEVICE = "no_device"
    POLICY = "policy"
