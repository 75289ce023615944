"""Client options of a run, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.request_result import RequestResult

Observer = Callable[[int, RequestResult, float], None]
"""Called with index, result and seconds from the intended start, as each request ends."""

ProgressCallback = Callable[[float, int, int], None]
"""Called about once a second with seconds since the start, requests launched and requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Client options: connections, timeouts and limits.

    Raises:
        TrafficError: a number that is not above 0.
    """

    connections: int = 256
    """Opened before the start, so that no latency includes connecting. A closed loop has one per user."""
    more_connections: int = 0
    """Opened while all others are busy; with 0, requests wait, and their latency includes the wait."""
    max_inflight: int = 20_000
    """Above it a request is dropped and counted, never delayed (the rule of k6)."""
    timeout_s: float = 30.0
    """From the intended start to the last byte of the response."""
    drain_s: float = 30.0
    """Longest wait for responses after the last request was sent."""
    spin: bool = False
    """Poll for due requests without a pause: exact to some 10 us, at the cost of a whole core."""

    def __post_init__(self) -> None:
        if self.more_connections < 0:
            raise TrafficError("more_connections must not be negative")
        if not min(self.connections, self.max_inflight, self.timeout_s, self.drain_s) > 0:
            raise TrafficError("connections, max_inflight, timeout_s and drain_s must be above 0")
