"""Detects a proxy in front of the service, which makes all callers look like one."""

from __future__ import annotations

import ipaddress
from collections import Counter

REQUESTS = 1000
"""Number of requests inspected after the start; then the result is final."""

SHARE = 0.9
"""Share of all requests from one private address above which it is more likely a proxy than a caller."""

WARNING = (
    "nearly all requests come from one private address: the service is behind a proxy, "
    "and all users count as one; set AUTOGLM_THROTTLE_TRUSTED_PROXIES"
)


class ProxyDetector:
    """Counts the peers of the first requests, for a service that trusts no proxy."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()
        self._remaining = REQUESTS

    @property
    def is_complete(self) -> bool:
        """Whether enough requests have been inspected."""
        return self._remaining <= 0

    def observe(self, peer: str) -> bool:
        """Count one request. Return True, at most once, if the counts now indicate a proxy.

        Args:
            peer: the other end of the connection; empty for a UNIX socket.
        """
        if self._remaining <= 0:
            return False
        self._peers[peer] += 1
        self._remaining -= 1
        if self._remaining:
            return False
        peers, self._peers = self._peers, Counter()
        busiest = max(peers, key=peers.__getitem__)
        return peers[busiest] >= SHARE * REQUESTS and _is_private(busiest)


def _is_private(peer: str) -> bool:
    if not peer:
        return True
    try:
        return ipaddress.ip_address(peer).is_private
    except ValueError:
        return False
