"""User limits: their form, bounds and state."""

from __future__ import annotations

from dataclasses import dataclass

EXACT_AT_MOST = 1000
"""Units: a limit up to here uses an exact log, a larger one 60 strict sub-buckets."""

UNITS_AT_MOST = 16_777_215
"""Units: the maximum of any limit, of a user or an address, in memory or in a store.

2**24 - 1: the range of three bytes, the size of a counter in the compact form of a shared store.
"""

SUB_BUCKETS = 60
"""Sub-buckets of a window in the compact form; a partly expired one counts fully, so no limit is exceeded."""


@dataclass(frozen=True, slots=True)
class UserLimit:
    """A limit of units in any window of the given seconds, for each user."""

    name: str
    """``user-60s``: its name in headers and rejections."""
    limit: int
    """Units, 1..`UNITS_AT_MOST`."""
    window_s: int
    """Whole seconds, at least 1: the notation has no shorter granularity."""

    @property
    def exact(self) -> bool:
        """Whether it uses an exact log; else the compact form."""
        return self.limit <= EXACT_AT_MOST


@dataclass(slots=True)
class LimitStatus:
    """One user limit after a decision: the source of the RateLimit header fields."""

    name: str
    limit: int
    """Units in a window."""
    window_s: int
    remaining: int
    """Units left now, after this request was charged."""
    reset_s: float
    """Seconds until the oldest counted unit leaves the window; 0 if nothing is counted."""
