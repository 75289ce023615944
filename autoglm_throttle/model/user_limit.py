"""A limit of a user: its form, its bounds, its state."""

from __future__ import annotations

from dataclasses import dataclass

EXACT_AT_MOST = 1000
"""Units: a limit up to here is kept as an exact log, a larger one as 60 strict sub-buckets."""

UNITS_AT_MOST = 16_777_215
"""Units: no limit is larger, of a user or an address, in memory or in a store.

2**24 - 1: what three bytes count, the size of a counter in the compact form of a shared store.
"""

SUB_BUCKETS = 60
"""Sub-buckets of a window in the compact form; one partly expired counts whole, so no limit is passed."""


@dataclass(frozen=True, slots=True)
class UserLimit:
    """So many units in any window of so many seconds, for each user."""

    name: str
    """``user-60s``: what headers and refusals call it."""
    limit: int
    """Units, 1..`UNITS_AT_MOST`."""
    window_s: int
    """Whole seconds, at least 1: the notation knows no shorter granularity."""

    @property
    def exact(self) -> bool:
        """Whether it is kept as an exact log; else in the compact form."""
        return self.limit <= EXACT_AT_MOST


@dataclass(slots=True)
class WindowState:
    """One user limit after a decision: what the RateLimit header fields are made of."""

    name: str
    limit: int
    """Units in a window."""
    window_s: int
    remaining: int
    """Units left now, after this request was charged."""
    reset_s: float
    """Seconds until the oldest counted unit leaves the window; 0 if nothing is counted."""
