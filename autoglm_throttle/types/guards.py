"""Values of guarded calls: states of breakers, permits, rejections and views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import TracebackType
from typing import Any, Literal, NamedTuple

from autoglm_throttle.types.errors import ThrottleError

CriticalityName = Literal["core", "non_core"]


class BreakerState(StrEnum):
    """State of a breaker; also the value of a metric label."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # a few probe calls are let through; their outcomes decide
    RAMPING = "ramping"  # a share of the calls is let through, in steps
    FORCED_OPEN = "forced_open"  # all calls are rejected until an operator resets the breaker
    DISABLED = "disabled"  # all calls are let through and not counted, until an operator resets the breaker


class BreakerCause(StrEnum):
    """Cause of a state change or a rejection; also the value of a metric label."""

    FAILURES = "failures"  # the allowed number of consecutive failures was reached
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"
    TRIAL = "trial"  # the open period is over and probe calls are in flight; or a probe call has ended
    RAMP = "ramp"  # the share of this step is used up; or the ramp has ended
    IN_FLIGHT = "in_flight"  # the maximum of calls is in flight
    RETRY_AFTER = "retry_after"  # the dependency itself sent a Retry-After
    OPERATOR = "operator"
    REMOTE = "remote"  # another process of the fleet opened it
    SHED = "shed"  # the dependency is healthy: the feature is shed under load


class TripRule(StrEnum):
    """A rule by which a breaker opens (``BREAKER_TRIP``)."""

    CONSECUTIVE = "consecutive"
    FAILURE_RATE = "failure_rate"
    SLOW_RATE = "slow_rate"


class SlowCallMode(StrEnum):
    """How a successful but slow call counts (``breaker_slow_is``)."""

    FAILURE = "failure"
    SEPARATE = "separate"  # a success for every rule but slow_rate


class StreamSettleMode(StrEnum):
    """When the probe call of a stream counts as successful (``breaker_stream_settle``)."""

    END = "end"
    FIRST_ITEM = "first_item"


class TooManyRequestsMode(StrEnum):
    """How a 429 response of a dependency counts (``breaker_on_429``)."""

    NEUTRAL = "neutral"
    OPEN = "open"  # the breaker opens for the time of its Retry-After


class BreakerMode(StrEnum):
    """Initial mode of a breaker (``BREAKER_MODE``)."""

    ENFORCE = "enforce"
    METRICS_ONLY = "metrics_only"  # all calls are let through; would-be rejections are counted
    DISABLED = "disabled"


class Criticality(StrEnum):
    """Importance of a feature for the service."""

    CORE = "core"  # never shed by load; under load answered from the stale cache or a static fallback
    NON_CORE = "non_core"  # shed first under load


class DegradationLevel(IntEnum):
    """Degradation level, the mildest first."""

    FULL = 0
    SHED = 1  # features that are not core are shed
    STALE = 2  # core features are answered from the stale cache, where it has an entry
    STATIC = 3  # core features are answered by their static fallback, where there is one

    @property
    def label(self) -> str:
        """The name in lower case, as in logs and metrics."""
        return self.name.lower()


class FallbackKind(StrEnum):
    """Source of an answer produced without the dependency; also the value of a metric label."""

    STALE = "stale"
    DYNAMIC = "dynamic"
    STATIC = "static"
    SHED = "shed"  # no fallback had an answer: the call was rejected


@dataclass(frozen=True, slots=True)
class GuardPermit:
    """Permission to make one call; its outcome must be recorded once."""

    generation: int
    """Generation of the breaker at that time: results of an earlier generation no longer count."""
    serial: int = 0
    """0: an ordinary call, with one permit shared by all; above 0: a probe call, or a counted call."""
    fence: int = 0  # above 0: the fleet's own number of this probe call


class GuardRejection(NamedTuple):
    """A rejected call: a value, never raised by itself.

    A tuple, since a frozen dataclass takes three times as long to build: most of the cost of a rejected call.
    """

    name: str  # name of the guard
    state: BreakerState
    cause: BreakerCause
    retry_after_s: float
    """Seconds until the next call is worth making; 0: a slot may become free at any time."""
    last_failure: str = ""  # type and text of the newest failure, truncated to 200 characters
    lease_wanted: bool = False
    """The caller may make the call if it gets the fleet's lease for the probe call."""


class GuardRejected(ThrottleError):
    """Raised by every form of a guard: the call was rejected, and no fallback answered.

    Args:
        rejection: of this call, or of an earlier one in the same open period.
        retry_after_s: seconds left of that period; None: those of the rejection.
    """

    def __init__(self, rejection: GuardRejection, retry_after_s: float | None = None) -> None:
        # No super().__init__, for speed: BaseException.__new__ has stored the arguments already.
        self._rejection = rejection
        self.retry_after_s: float = rejection.retry_after_s if retry_after_s is None else retry_after_s
        """Seconds until the next call is worth making."""

    @property
    def rejection(self) -> GuardRejection:
        """The rejection, built on first access during an open period."""
        if self._rejection.retry_after_s != self.retry_after_s:
            self._rejection = self._rejection._replace(retry_after_s=self.retry_after_s)
        return self._rejection

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self._rejection.name

    @property
    def last_failure(self) -> str:
        """Type and text of the newest failure."""
        return self._rejection.last_failure

    @staticmethod
    def find(error: BaseException | None) -> GuardRejected | None:
        """Return the rejection that an exception reports: itself, its cause, or a cause further back.

        A client's library wraps it: openai in an ``APIConnectionError``, requests without ``from``. A
        rejection that was being handled when the failing call began is no cause of it.
        """
        seen: list[BaseException] = []
        trace = None if error is None or error.__traceback__ is None else error.__traceback__.tb_next
        while error is not None and error not in seen:
            if isinstance(error, GuardRejected):
                return error
            seen.append(error)
            cause = error.__cause__
            if cause is None and not error.__suppress_context__ and _is_caught_in(trace, error.__context__):
                cause = error.__context__
            error, trace = cause, None if cause is None else cause.__traceback__
        return None

    def __str__(self) -> str:
        rejection = self.rejection
        after = f", try again in {rejection.retry_after_s:.1f} s" if rejection.retry_after_s else ""
        last = f", last failure {rejection.last_failure}" if rejection.last_failure else ""
        return f"{rejection.name} is {rejection.state} ({rejection.cause}){after}{last}"


def _is_caught_in(trace: TracebackType | None, error: BaseException | None) -> bool:
    # Whether the frame that caught the exception is one of the trace, so that it was raised in the same call.
    caught = None if error is None else error.__traceback__
    while caught is not None and trace is not None:
        if trace.tb_frame is caught.tb_frame:
            return True
        trace = trace.tb_next
    return False


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    """One change of a breaker's state, as callers see it."""

    name: str
    before: BreakerState
    after: BreakerState
    cause: BreakerCause
    at_s: float  # monotonic seconds
    generation: int  # the generation that begins with it
    retry_after_s: float = 0.0  # seconds until the next probe call, where after is open
    rounds: int = 0  # consecutive openings without a closing between them, minus one


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """A breaker at one moment. Its counts only grow, except across a fork."""

    name: str
    state: BreakerState  # the state for callers: an open breaker after its open period reads half-open
    machine: BreakerState  # the stored state, which changes only at the next call
    metrics_only: bool  # whether rejections are only counted
    cause: BreakerCause | None  # cause of the newest change; None before the first
    generation: int
    streak: int  # consecutive failures
    window_calls: int  # results in the window; 0 where no rule uses it
    window_failures: int
    window_slow: int
    probes: int  # probe calls in flight, including those with an expired lease and no replacement yet
    probe_successes: int  # successful probe calls of this half-open round
    rounds: int
    opened_s: float | None  # monotonic seconds of the newest opening; None: never opened, or closed since
    retry_after_s: float
    in_flight: int  # calls in flight; known only with max_in_flight, else the probe calls
    calls: int = 0
    """Calls let through, counted without a lock: of two concurrent increments one may be lost."""
    rejected: Mapping[BreakerCause, int] = field(default_factory=dict)
    would_reject: int = 0
    stale_results: int = 0  # results of an earlier generation, and second results of one call
    classifier_errors: int = 0
    last_failure: str = ""
    shared: bool = False  # whether the fleet's store decides on probe calls now


@dataclass(frozen=True, slots=True)
class RemoteBreakerState:
    """State of a breaker as the fleet knows it. Never ``RAMPING``: a ramp is local to a process."""

    version: int  # rises with every change, even after a lost key
    state: BreakerState
    wait_s: float = 0.0  # seconds left of the open period when this was received
    rounds: int = 0
    cause: BreakerCause = BreakerCause.REMOTE  # cause in the process that made the change


@dataclass(frozen=True, slots=True)
class ProbeLease:
    """The fleet's permission for one probe."""

    fence: int  # fencing token: above 0, and greater for newer leases
    version: int  # version of the state in which it was granted
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Parameters of a request for a probe lease."""

    half_open_max: int
    successes_needed: int
    limits_concurrent: bool
    """Whether ``half_open_max`` limits concurrent probes; else it limits the probes of a round."""
    lease_s: float


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """The context that a dynamic fallback receives."""

    name: str  # name of the guard
    cause: str  # the cause: a `BreakerCause`, error, or load
    error: BaseException | None  # the exception, which may be a rejection; None under load
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
