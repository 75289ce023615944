"""What a guard and its callers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

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
