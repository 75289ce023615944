"""Values exchanged between guards and their callers."""

from __future__ import annotations

from dataclasses import dataclass

from autoglm_throttle.model.breaker import Cause, State
from autoglm_throttle.model.errors import ThrottleError


@dataclass(frozen=True, slots=True)
class Pass:
    """Permission to make one call; its outcome must be recorded once."""

    generation: int
    """Generation of the breaker at that time: results of an earlier generation no longer count."""
    serial: int = 0
    """0: an ordinary call, with one permit shared by all; above 0: a probe call, or a counted call."""
    fence: int = 0
    """Above 0: the fleet's own number of this probe call."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected call: a value, never raised by itself."""

    name: str
    """Name of the guard."""
    state: State
    cause: Cause
    retry_after_s: float
    """Seconds until the next call is worth making; 0: a slot may become free at any time."""
    last_failure: str = ""
    """Type and text of the newest failure, truncated to 200 characters."""
    lease_wanted: bool = False
    """The caller may make the call if it gets the fleet's lease for the probe call."""


class GuardRefused(ThrottleError):
    """Raised by every form of a guard: the call was rejected, and no fallback answered."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal: Refusal = refusal

    @property
    def name(self) -> str:
        """Name of the guard."""
        return self.refusal.name

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next call is worth making."""
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
    """One change of a breaker's state, as callers see it."""

    name: str
    before: State
    after: State
    cause: Cause
    at_s: float
    """Monotonic seconds."""
    generation: int
    """The generation that begins with it."""
    retry_after_s: float = 0.0
    """Seconds until the next probe call, where ``after`` is open."""
    rounds: int = 0
    """Consecutive openings without a closing between them, minus one."""
