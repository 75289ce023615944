"""Counters of one breaker."""

from __future__ import annotations

from autoglm_throttle.types import BreakerCause


class BreakerCounts:
    """Counters of one breaker since its creation."""

    __slots__ = ("classifier_errors", "rejected", "stale_results", "would_reject")

    def __init__(self) -> None:
        self.rejected: dict[BreakerCause, int] = dict.fromkeys(BreakerCause, 0)
        """Rejected calls by cause."""
        self.would_reject: int = 0
        """Admitted calls that an enforcing breaker would have rejected."""
        self.stale_results: int = 0
        """Results of an earlier generation, and second results of one call."""
        self.classifier_errors: int = 0
        """Exceptions of the user's classifier; counted by the owner of the breaker."""
