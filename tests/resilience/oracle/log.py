"""The log of a breaker: the whole state of the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from autoglm_throttle.types import BreakerCause, BreakerState, GuardPermit, Outcome


@dataclass(frozen=True)
class Went:
    """The breaker went to a state; a generation began."""

    to: BreakerState
    cause: BreakerCause | None
    at: float
    wait_s: float | None = None
    """How long to stay open this once; None: by the formula."""


@dataclass(frozen=True)
class Requested:
    """A permission was requested: a probe that has held its slot for too long loses it."""

    at: float


@dataclass(frozen=True)
class Deposited:
    """A ramp took a call into account: this share of it may be admitted."""

    share: Fraction


@dataclass(frozen=True)
class Stepped:
    """A ramp went to its next share."""

    at: float


@dataclass(frozen=True)
class Gave:
    """Leave was given."""

    pass_: GuardPermit
    at: float


@dataclass(frozen=True)
class Ended:
    """A call whose result counts has come to its end."""

    pass_: GuardPermit
    outcome: Outcome
    at: float
    latest: float
    """The latest time that had been seen by then."""


@dataclass(frozen=True)
class Denied:
    """A permission was rejected, or would have been."""

    cause: BreakerCause
    really: bool


@dataclass(frozen=True)
class Late:
    """A result came that counts for nothing any more."""


@dataclass(frozen=True)
class Agreed:
    """The fleet said how many rounds it has counted."""

    rounds: int


Entry = Agreed | Went | Requested | Deposited | Stepped | Gave | Ended | Denied | Late
