"""One budget for all priorities, active only while the policy ``adaptive`` reduces or holds rates.

Each class may spend it only above its own reserve, so lower classes are rejected first.
It estimates no demand and draws no lots: below the rate no request is rejected.
"""

from __future__ import annotations

from autoglm_throttle.limiting.token_bucket import TokenBucket
from autoglm_throttle.settings.groups.control import RateSettings
from autoglm_throttle.types import Decision, Priority, Reason

CAPACITY_S = 0.5
"""Seconds of the rate that a full budget holds."""

MIN_CAPACITY = 8.0
"""Least capacity of a full budget in requests: below two requests a second it would fall under one
request, and no request would ever pass.
"""


class SharedBudget:
    """A token bucket that all classes spend from, one token for a request. It starts inactive.

    Args:
        settings: the shares of the capacity that mid and low leave behind.
        now: monotonic seconds.
    """

    __slots__ = ("_active", "_detail", "bucket", "reserves")

    def __init__(self, settings: RateSettings, now: float) -> None:
        self.reserves: tuple[float, float, float] = (0.0, settings.reserve_mid, settings.reserve_low)
        """Share of the capacity that high, mid and low leave behind."""
        self.bucket: TokenBucket = TokenBucket(0.0, MIN_CAPACITY, now, "gpu")
        self._active = False
        self._detail = ""

    def take(self, priority: Priority, now: float) -> Decision | None:
        """Take one token; None means taken, or that no budget is active."""
        if not self._active:
            return None
        bucket = self.bucket
        wait = bucket.take(1.0, now, keep=self.reserves[priority] * bucket.burst)
        if not wait:
            return None
        return Decision(
            allowed=False,
            reason=Reason.GPU,
            detail=self._detail,
            policy=bucket.name,
            limit=bucket.burst,
            remaining=bucket.tokens(now),
            retry_after_s=wait,
            reset_after_s=wait,
        )

    def give_back(self, now: float) -> None:
        """Return an unused token."""
        self.bucket.give_back(1.0, now)

    def rescale(self, budget_rps: float | None, term: str, now: float) -> None:
        """Refill at ``budget_rps`` requests per second from now on; None deactivates the budget.

        Stored tokens stay, within the new capacity. After an inactive phase it begins full.

        Args:
            budget_rps: > 0, or None.
            term: the deciding term; rejections name it as ``gpu:<term>``.
            now: monotonic seconds.
        """
        if budget_rps is None:
            self._active = False
            return
        capacity = max(CAPACITY_S * budget_rps, MIN_CAPACITY)
        if self._active:
            self.bucket.resize(budget_rps, capacity, now)
        else:
            self.bucket = TokenBucket(budget_rps, capacity, now, "gpu")
        self._active = True
        self._detail = f"gpu:{term}"

    def __repr__(self) -> str:
        return f"SharedBudget({self.bucket!r})" if self._active else "SharedBudget(inactive)"
