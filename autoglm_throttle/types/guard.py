"""Values exchanged between guards and their callers."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.types.breaker import BreakerCause, BreakerState
from autoglm_throttle.types.errors import ThrottleError


@dataclass(frozen=True, slots=True)
class GuardPermit:
    """Permission to make one call; its outcome must be recorded once."""

    generation: int
    """Generation of the breaker at that time: results of an earlier generation no longer count."""
    serial: int = 0
    """0: an ordinary call, with one permit shared by all; above 0: a probe call, or a counted call."""
    fence: int = 0
    """Above 0: the fleet's own number of this probe call."""


@dataclass(frozen=True, slots=True)
class GuardRejection:
    """A rejected call: a value, never raised by itself."""

    name: str
    """Name of the guard."""
    state: BreakerState
    cause: BreakerCause
    retry_after_s: float
    """Seconds until the next call is worth making; 0: a slot may become free at any time."""
    last_failure: str = ""
    """Type and text of the newest failure, truncated to 200 characters."""
    lease_wanted: bool = False
    """The caller may make the call if it gets the fleet's lease for the probe call."""


class GuardRejected(ThrottleError):
    """Raised by every form of a guard: the call was rejected, and no fallback answered."""

    def __init__(self, rejection: GuardRejection) -> None:
        super().__init__(rejection)
        self.rejection: GuardRejection = rejection

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.rejection.name

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next call is worth making."""
        return self.rejection.retry_after_s

    @property
    def last_failure(self) -> str:
        """Type and text of the newest failure."""
        return self.rejection.last_failure

    def __str__(self) -> str:
        rejection = self.rejection
        after = f", try again in {rejection.retry_after_s:.1f} s" if rejection.retry_after_s else ""
        last = f", last failure {rejection.last_failure}" if rejection.last_failure else ""
        return f"{rejection.name} is {rejection.state} ({rejection.cause}){after}{last}"


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    """One change of a breaker's state, as callers see it."""

    name: str
    before: BreakerState
    after: BreakerState
    cause: BreakerCause
    at_s: float
    """Monotonic seconds."""
    generation: int
    """The generation that begins with it."""
    retry_after_s: float = 0.0
    """Seconds until the next probe call, where ``after`` is open."""
    rounds: int = 0
    """Consecutive openings without a closing between them, minus one."""
