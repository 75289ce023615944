"""Closed sets of words about calls that leave the process: states, causes, levels, choices."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class State(StrEnum):
    """What a breaker does with a call; also the value of a metric label."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """A few calls are let through as trials; what becomes of them decides."""
    RAMPING = "ramping"
    """A share of the calls is let through, in steps."""
    FORCED_OPEN = "forced_open"
    """Nothing is let through until an operator says otherwise."""
    DISABLED = "disabled"
    """Everything is let through and nothing is counted until an operator says otherwise."""


class Cause(StrEnum):
    """Why a breaker changed its state, or refused a call; also the value of a metric label."""

    FAILURES = "failures"
    """As many failures in a row as are allowed."""
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"
    TRIAL = "trial"
    """The open period is over and trials are under way; or a trial has ended."""
    RAMP = "ramp"
    """The share of this step is used up; or the ramp has come to its end."""
    IN_FLIGHT = "in_flight"
    """As many calls are under way as may be."""
    RETRY_AFTER = "retry_after"
    """The dependency itself said when to come back."""
    OPERATOR = "operator"
    REMOTE = "remote"
    """Another process of the fleet found out."""
    SHED = "shed"
    """Nothing is wrong with the dependency: the service has no load to spare for this feature."""


class Trip(StrEnum):
    """A rule by which a breaker opens (``BREAKER_TRIP``)."""

    CONSECUTIVE = "consecutive"
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"


class SlowIs(StrEnum):
    """What a call is that succeeded too slowly (``BREAKER_SLOW_IS``)."""

    FAILURE = "failure"
    SEPARATE = "separate"
    """A success for every rule but ``slow_rate``."""


class StreamSettle(StrEnum):
    """When the trial of a stream is known to have succeeded (``BREAKER_STREAM_SETTLE``)."""

    END = "end"
    FIRST_ITEM = "first_item"


class On429(StrEnum):
    """What an answer 429 of a dependency means (``BREAKER_ON_429``)."""

    NEUTRAL = "neutral"
    OPEN = "open"
    """Open for as long as its Retry-After says."""


class Mode(StrEnum):
    """How a breaker begins (``BREAKER_MODE``)."""

    ENFORCE = "enforce"
    METRICS_ONLY = "metrics_only"
    """Everything is let through; what would have been refused is counted."""
    DISABLED = "disabled"


class Criticality(StrEnum):
    """What a feature is to the service."""

    CORE = "core"
    """Never shed by the ladder; at most answered from memory."""
    NON_CORE = "non_core"
    """The first to go under load."""


class Level(IntEnum):
    """A step of the ladder of degradation, the mildest first."""

    FULL = 0
    SHED = 1
    """Features that are not core are shed."""
    STALE = 2
    """Core features are answered from what was kept, where it was."""
    STATIC = 3
    """Core features are answered by their static fallback, where there is one."""

    @property
    def label(self) -> str:
        """The name in lower case, as logs and metrics say it."""
        return self.name.lower()


class Rung(StrEnum):
    """What an answer was made of that the dependency has not given; also the value of a metric label."""

    STALE = "stale"
    DYNAMIC = "dynamic"
    STATIC = "static"
    SHED = "shed"
    """There was nothing to answer with: the call was refused."""
