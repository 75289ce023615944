"""Position of one breaker in its fleet: the version it knows, and its requests for probe leases."""

from __future__ import annotations

import math
from typing import Final

LEASE_REQUEST_INTERVAL_S: Final = 0.05
"""Seconds between two calls that request the fleet's lease: the default deadline of the store."""


class FleetPosition:
    """The newest version that a breaker knows of its fleet, and its requests for probe leases.

    Args:
        lease_request_interval_s: seconds between two calls that may request the fleet's lease, > 0.
    """

    __slots__ = ("_interval_s", "_requested_s", "known_version", "lease_required")

    def __init__(self, lease_request_interval_s: float = LEASE_REQUEST_INTERVAL_S) -> None:
        self.lease_required: bool = False
        """Whether a probe needs the fleet's lease; set by the owner of the breaker."""
        self.known_version: int = -1
        """Version of the newest state of the fleet that was applied."""
        self._interval_s = lease_request_interval_s
        self._requested_s = -math.inf

    def is_lease_request_due(self, now: float) -> bool:
        """Whether the next call should request a lease. Has no effects."""
        # The lower bound treats a clock that stepped back as expired, so the lease is requested again.
        return not 0.0 <= now - self._requested_s < self._interval_s

    def record_lease_request(self, now: float) -> None:
        """Record that a call requests a lease."""
        self._requested_s = now
