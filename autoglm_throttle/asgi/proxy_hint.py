"""Notices that all callers look like one because a proxy stands in front."""

from __future__ import annotations

import ipaddress
from collections import Counter

REQUESTS = 1000
"""Requests looked at, from the start on; after them the question is settled."""

SHARE = 0.9
"""A host that sends so much of everything from a private address is more likely a proxy than a caller."""

WARNING = (
    "nearly all requests come from one private address: you are behind a proxy, "
    "and all users count as one; set AUTOGLM_THROTTLE_TRUSTED_PROXIES"
)


class ProxyHint:
    """Counts the peers of the first requests, for a service that trusts no proxy."""

    def __init__(self) -> None:
        self._peers: Counter[str] = Counter()
        self._left = REQUESTS

    @property
    def done(self) -> bool:
        """Whether enough has been seen."""
        return self._left <= 0

    def note(self, peer: str) -> bool:
        """Count one request; True, once at most, if it completes the picture of a proxy.

        Args:
            peer: the other end of the connection; empty for a UNIX socket.
        """
        if self._left <= 0:
            return False
        self._peers[peer] += 1
        self._left -= 1
        if self._left:
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
