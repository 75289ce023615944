"""Enums for guarded calls: states, causes, levels, modes."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal


class BreakerState(StrEnum):
    """State of a breaker; also the value of a metric label."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """A few probe calls are let through; their outcomes decide."""
    RAMPING = "ramping"
    """A share of the calls is let through, in steps."""
    FORCED_OPEN = "forced_open"
    """All calls are rejected until an operator resets the breaker."""
    DISABLED = "disabled"
    """All calls are let through and not counted, until an operator resets the breaker."""


class BreakerCause(StrEnum):
    """Cause of a state change or a rejection; also the value of a metric label."""

    FAILURES = "failures"
    """The allowed number of consecutive failures was reached."""
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"
    TRIAL = "trial"
    """The open period is over and probe calls are in flight; or a probe call has ended."""
    RAMP = "ramp"
    """The share of this step is used up; or the ramp has ended."""
    IN_FLIGHT = "in_flight"
    """The maximum of calls is in flight."""
    RETRY_AFTER = "retry_after"
    """The dependency itself sent a Retry-After."""
    OPERATOR = "operator"
    REMOTE = "remote"
    """Another process of the fleet opened it."""
    SHED = "shed"
    """The dependency is healthy: the feature is shed under load."""


TripName = Literal["consecutive", "failure_rate", "slow_rate"]


class TripRule(StrEnum):
    """A rule by which a breaker opens (``BREAKER_TRIP``)."""

    CONSECUTIVE = "consecutive"
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"


SlowCallName = Literal["failure", "separate"]


class SlowCallMode(StrEnum):
    """How a successful but slow call counts (``breaker_slow_is``)."""

    FAILURE = "failure"
    SEPARATE = "separate"
    """A success for every rule but ``slow_rate``."""


StreamSettleName = Literal["end", "first_item"]


class StreamSettleMode(StrEnum):
    """When the probe call of a stream counts as successful (``breaker_stream_settle``)."""

    END = "end"
    FIRST_ITEM = "first_item"


TooManyRequestsName = Literal["neutral", "open"]


class TooManyRequestsMode(StrEnum):
    """How a 429 response of a dependency counts (``breaker_on_429``)."""

    NEUTRAL = "neutral"
    OPEN = "open"
    """The breaker opens for the time of its Retry-After."""


BreakerModeName = Literal["enforce", "metrics_only", "disabled"]


class BreakerMode(StrEnum):
    """Initial mode of a breaker (``BREAKER_MODE``)."""

    ENFORCE = "enforce"
    METRICS_ONLY = "metrics_only"
    """All calls are let through; would-be rejections are counted."""
    DISABLED = "disabled"


CriticalityName = Literal["core", "non_core"]
"""The values of `Criticality`, accepted wherever a user states one in code."""


class Criticality(StrEnum):
    """Importance of a feature for the service."""

    CORE = "core"
    """Never shed by load; under load answered from the stale cache or a static fallback."""
    NON_CORE = "non_core"
    """Shed first under load."""


class DegradationLevel(IntEnum):
    """Degradation level, the mildest first."""

    FULL = 0
    SHED = 1
    """Features that are not core are shed."""
    STALE = 2
    """Core features are answered from the stale cache, where it has an entry."""
    STATIC = 3
    """Core features are answered by their static fallback, where there is one."""

    @property
    def label(self) -> str:
        """The name in lower case, as in logs and metrics."""
        return self.name.lower()


class FallbackKind(StrEnum):
    """Source of an answer produced without the dependency; also the value of a metric label."""

    STALE = "stale"
    DYNAMIC = "dynamic"
    STATIC = "static"
    SHED = "shed"
    """No fallback had an answer: the call was rejected."""
