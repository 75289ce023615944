"""Cached responses of a feature for HTTP clients."""

from __future__ import annotations

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.http.cache import CacheRequest, ResponseCache
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from tests.resilience.httpx.guarded_calls import URL


def test_request_during_a_cache_change_misses_without_waiting() -> None:
    found: list[object] = []

    def clock() -> float:
        """Ask for the stored response amid the change that reads the time."""
        if requests:
            requests.pop()
            found.extend([cache.find(request), cache.is_unshareable(request)])
        return 1.0

    requests: list[bool] = []
    log = RateLimitedLogger("dep", lambda: 1.0)
    request = CacheRequest("GET", URL, ())
    cache = ResponseCache(None, DegradationSettings(), 60.0, clock, log)
    policy = cache.policy(request, 200, (("cache-control", "max-age=60"),), 1.0)
    assert policy is not None
    policy.put(b"stored")
    requests.append(True)
    assert cache.find(request) is not None
    assert found == [None, True]
