"""Decisions on demands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autoglm_throttle.types.enums import Reason
from autoglm_throttle.types.errors import ThrottleError
from autoglm_throttle.types.user_limit import LimitStatus

DecisionLabel = Literal["admitted", "limited", "shed", "degraded", "exempt"]

LIMITED = frozenset({Reason.RATE, Reason.USER, Reason.TOO_LARGE})
"""Rejections by the caller's own limit; all others are caused by our load."""


def decision_label(reason: Reason) -> DecisionLabel:
    """Return ``limited`` for the caller's own limit, ``shed`` for our load, else ``admitted``."""
    if reason is Reason.OK:
        return "admitted"
    return "limited" if reason in LIMITED else "shed"


@dataclass(slots=True)
class Decision:
    """The decision on a Demand: numbers and a reason, no HTTP.

    ``retry_after_s`` is exact: the demand is rejected at every instant before it and admissible at it,
    if no other request takes units and the control state stays. It is infinite when no wait can help.
    """

    allowed: bool
    reason: Reason
    detail: str = ""
    """The finer reason, such as ``rate:low`` or ``user:user-60s``."""
    policy: str = ""
    """Name of the limit that decided, empty for an admission without a user limit."""
    limit: float = math.inf
    """Maximum units of the deciding limit."""
    remaining: float = math.inf
    """Units left now; after an admission, with this request charged."""
    retry_after_s: float = 0.0
    reset_after_s: float = 0.0
    """Seconds until the deciding limit releases the oldest unit it counts."""
    window_s: int = 0
    """Length of the deciding limit's window; 0 if it is no user limit."""
    others: tuple[LimitStatus, ...] = ()
    """The other user limits that were checked."""
    would_reject: Decision | None = None
    """The rejection that a dry run has turned into this admission."""

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """All checked user limits; empty where a rate or the GPU decided."""
        if not self.window_s:
            return ()
        # Unlimited values are infinite, but a user limit always has finite numbers.
        limit, remaining = int(self.limit), int(self.remaining)
        return (LimitStatus(self.policy, limit, self.window_s, remaining, self.reset_after_s), *self.others)


class Rejected(ThrottleError):
    """Raised by `Throttle.slot`, and for a rejected additional charge inside a handler.

    Args:
        decision: the rejection; the attribute of this name holds it.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision
