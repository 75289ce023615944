"""What a guard and its callers say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoglm_throttle.model.breaker import Cause, State
from autoglm_throttle.model.errors import ThrottleError


@dataclass(frozen=True, slots=True)
class Pass:
    """Leave to make one call; its outcome must be recorded once."""

    generation: int
    """The breaker's, when the leave was given: a result of an earlier one counts no more."""
    serial: int = 0
    """0: an ordinary call, whose pass is shared by all; above 0: a trial, or a call that is counted."""
    fence: int = 0
    """Above 0: the fleet's own number of this trial."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused call: a value, never raised by itself."""

    name: str
    """Of the guard."""
    state: State
    cause: Cause
    retry_after_s: float
    """Seconds after which the next call is worth making; 0: a place may come free at any time."""
    last_failure: str = ""
    """Type and text of the newest failure, at most 200 characters of it."""
    lease_wanted: bool = False
    """The caller may make the call if it gets the fleet's lease for the trial."""


class GuardRefused(ThrottleError):
    """The one exception of every face: the guard let the call not through, and no fallback answered."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal: Refusal = refusal

    @property
    def name(self) -> str:
        """Of the guard."""
        return self.refusal.name

    @property
    def retry_after_s(self) -> float:
        """Seconds after which the next call is worth making."""
        return self.refusal.retry_after_s

    @property
    def last_failure(self) -> str:
        """Type and text of the newest failure."""
        return self.refusal.last_failure

    def __str__(self) -> str:
        refusal = self.refusal
        after = f", try again in {refusal.retry_after_s:.1f} s" if refusal.retry_after_s else ""
        last = f", last failure {refusal.last_failure}" if refusal.last_failure else ""
        return f"{refusal.name} is {refusal.state} ({refusal.cause}){after}{last}"


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of the state that callers see."""

    name: str
    before: State
    after: State
    cause: Cause
    at_s: float
    """Monotonic seconds."""
    generation: int
    """The one that begins with it."""
    retry_after_s: float = 0.0
    """Seconds until the next trial, where ``after`` is open."""
    rounds: int = 0
    """Openings in a row without a closing between them, less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerView:
    """A breaker at one moment. Its counts only grow, except across a fork."""

    name: str
    state: State
    """What a caller sees: an open breaker whose period is over reads half-open."""
    machine: State
    """What the machine is in until somebody asks it."""
    metrics_only: bool
    """Whether it only counts what it would refuse."""
    cause: Cause | None
    """Of the newest change; None before the first."""
    generation: int
    streak: int
    """Failures in a row."""
    window_calls: int
    """Results in the window; 0 where no rule looks at it."""
    window_failures: int
    window_slow: int
    trials: int
    """Under way, those included whose lease is over and that nobody has replaced yet."""
    won: int
    """Successes of this round of trials."""
    rounds: int
    opened_s: float | None
    """Monotonic seconds of the newest opening; None: never opened, or closed since."""
    retry_after_s: float
    in_flight: int
    """Calls under way; known only with ``max_in_flight``, else the trials."""
    calls: int = 0
    """Let through. Counted without a lock: of two threads at once one may be lost."""
    refused: Mapping[Cause, int] = field(default_factory=dict)
    would_refuse: int = 0
    stale_results: int = 0
    """Results of an earlier generation, and second results of one call."""
    classifier_errors: int = 0
    last_failure: str = ""
    shared: bool = False
    """Whether the fleet's store decides on trials now."""


@dataclass(frozen=True, slots=True)
class FallbackContext:
    """What a dynamic fallback is told."""

    name: str
    """Of the guard."""
    cause: str
    """Why there is no answer: a `Cause`, ``error``, or ``load``."""
    error: BaseException | None
    """What was raised, a refusal included; None under load."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
