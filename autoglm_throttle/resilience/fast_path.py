"""Flags and counters that the calls of a guard use while its breaker is closed."""

from __future__ import annotations

from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import GuardPermit


class FastPath:
    """Flags and counters of one guard for calls without a lock.

    The breaker and its guard write the flags, a call reads them. Decorated functions hold this object, so a
    breaker hands it on to its successor.

    Args:
        settings: of the breaker.
    """

    __slots__ = (
        "calls",
        "is_direct",
        "is_synced",
        "is_untimed",
        "permit",
        "shared_permit",
        "success_is_noop",
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self.shared_permit: GuardPermit = GuardPermit(0)
        """Permit of all calls of this generation that need no slot."""
        self.permit: GuardPermit | None = None
        """`shared_permit` if no check is needed (closed, enforcing, ``max_in_flight`` unset), else None."""
        self.success_is_noop: bool = False
        """Whether recording a success for `permit` would change nothing."""
        self.calls: int = 0
        """Admitted calls. A caller that uses `permit` directly increments it."""
        self.is_untimed: bool = settings.slow_call_s is None and settings.timeout_s is None
        """Whether a block needs no clock."""
        self.is_synced: bool = False
        """Whether the fleet's first state is known, or not needed."""
        self.is_direct: bool = False
        """Whether only the breaker decides: `is_synced`, no load shedding, no fallback.

        `permit` may then be used without further checks.
        """
