"""The share of the service rate that mid and low get together, however much high demands."""

from __future__ import annotations

SHARE_PATIENCE = 0.5
"""Share of its objective that a request of the guaranteed share waits."""

BURST = 2.0
"""Requests that an unused share saves up at least."""

BURST_S = 3.0
"""Seconds of the share that are saved up: with less, a tenth of a demand just as high gets nothing."""


class Share:
    """Credit that grows with time, as a token bucket whose rate is a share of the measured one.

    In any t seconds at most ``max(BURST, BURST_S * share * rate) + share * rate * t`` requests spend it,
    so a sudden flood of low requests cannot take the first place in line for all of its own.

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
        """Spend one request's credit, if there is so much."""
        share_rps = self._share * rate_rps
        credit = self._credit + (now - self._stamp_s) * share_rps
        credit = min(credit, max(BURST, BURST_S * share_rps))
        self._stamp_s = now
        taken = credit >= 1.0
        self._credit = credit - 1.0 if taken else credit
        return taken
