"""Reserves a share of the service rate for mid and low, however high the demand of high is."""

from __future__ import annotations

RESERVED_MAX_WAIT = 0.5
"""Share of its objective that a request on the reserved share may wait."""

BURST = 2.0
"""Least burst of an unused share, in requests."""

BURST_S = 3.0
"""Seconds of the share saved as credit: with less, a class with a tenth of the high demand gets nothing."""


class ReservedShare:
    """Credit that grows with time, like a token bucket with a share of the measured rate.

    In any t seconds at most ``max(BURST, BURST_S * share * rate) + share * rate * t`` requests spend it,
    so a burst of low requests cannot occupy the first queue.

    Args:
        share: of the service rate, 0..1; 0: never.
        now: monotonic seconds.
    """

    __slots__ = ("_credit", "_share", "_stamp_s")

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._credit = 0.0
        self._stamp_s = now

    def take(self, rate_rps: float, now: float) -> bool:
        """Spend the credit of one request, if there is enough."""
        share_rps = self._share * rate_rps
        credit = self._credit + (now - self._stamp_s) * share_rps
        credit = min(credit, max(BURST, BURST_S * share_rps))
        self._stamp_s = now
        taken = credit >= 1.0
        self._credit = credit - 1.0 if taken else credit
        return taken
