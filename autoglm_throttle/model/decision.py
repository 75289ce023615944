"""The answer to a demand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoglm_throttle.model.errors import ThrottleError
from autoglm_throttle.model.user_limit import WindowState
from autoglm_throttle.model.words import Reason


@dataclass(slots=True)
class Decision:
    """The answer to a Demand: numbers and a reason, no HTTP.

    ``retry_after_s`` is exact: refused at every instant before it, admissible at it,
    if nobody else spends and the Regime stays. It is infinite when no wait can help.
    """

    allowed: bool
    reason: Reason
    detail: str = ""
    """The finer reason, such as ``rate:low`` or ``user:user-60s``."""
    policy: str = ""
    """Name of the limit that decided, empty for an admission without a user limit."""
    limit: float = math.inf
    """Units that the deciding limit holds at most."""
    remaining: float = math.inf
    """Units left now; after an admission, with this request charged."""
    retry_after_s: float = 0.0
    reset_after_s: float = 0.0
    """Seconds until the deciding limit gives back the oldest unit it counts."""
    window_s: int = 0
    """Length of the deciding limit's window; 0 where it is no user limit."""
    others: tuple[WindowState, ...] = ()
    """The user limits that were looked at beside the deciding one."""
    would: Decision | None = None
    """The refusal that a dry run has turned into this admission."""

    @property
    def items(self) -> tuple[WindowState, ...]:
        """Every user limit that was looked at; none where a rate or the GPU decided."""
        if not self.window_s:
            return ()
        limit, remaining = int(self.limit), int(self.remaining)
        return (WindowState(self.policy, limit, self.window_s, remaining, self.reset_after_s), *self.others)


class Refused(ThrottleError):
    """Raised where an additional charge is refused in the midst of a request; carries the decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision
