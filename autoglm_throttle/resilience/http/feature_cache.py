"""HTTP cache of one feature: cache keys, stored responses, and requests without single flight."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.resilience.http.body import CachePolicy
from autoglm_throttle.resilience.http.caching_rules import CachedResponse, CacheRequest, storable
from autoglm_throttle.resilience.stale_cache import StaleCache

if TYPE_CHECKING:
    from autoglm_throttle.events import RateLimitedLogger
    from autoglm_throttle.resilience.feature import Fallback
    from autoglm_throttle.resilience.http.answer import Pairs
    from autoglm_throttle.resilience.http.cache import HttpCache
    from autoglm_throttle.types import Clock

CacheKey = Callable[[Any], Hashable | None]
"""Computes the cache key of a request, instead of method and URL; None: do not cache."""

UNSHARED_S: Final = 10.0
"""Seconds without single flight after a response that could not be shared.

An unshared wait doubles the duration of a call. Once in 10 s, the default open period of a breaker, that is
acceptable, and a response that has become sharable is soon detected.
"""

UNSHARED_ENTRIES: Final = 256
"""Maximum number of such requests remembered; beyond it some wait once more without a result."""


class HttpFeatureCache:
    """HTTP cache of one feature, for threads.

    Args:
        fallback: declares the cache key and the maximum age.
        cache: of this feature only.
        max_stale_s: seconds beyond its lifetime for which a cached response is used, unless the response or
            the fallback declares it.
        clock: monotonic seconds.
        log: logs requests without a key.
    """

    __slots__ = ("_cache", "_clock", "_key", "_lock", "_log", "_max_stale_s", "_unshareable")

    def __init__(
        self,
        fallback: Fallback,
        cache: HttpCache,
        max_stale_s: float,
        clock: Clock,
        log: RateLimitedLogger,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._key: CacheKey | None = fallback.key
        self._lock = SerialLock()
        self._log = log
        self._max_stale_s = max_stale_s if fallback.max_stale_s is None else fallback.max_stale_s
        self._unshareable: StaleCache[None] = StaleCache(UNSHARED_ENTRIES)

    def __repr__(self) -> str:
        return repr(self._cache)

    def request(
        self, method: str, url: str, headers: Pairs, request: object, key: CacheKey | None
    ) -> CacheRequest | None:
        """Return the cache request of an HTTP request; None: it is not cached.

        Args:
            method: in upper case.
            url: without a fragment.
            headers: of the request.
            request: passed to the key function.
            key: the caller's key function; None: that of the fallback, if any.
        """
        make = self._key if key is None else key
        if make is None:
            return CacheRequest(method, url, headers)
        try:
            user_key = make(request)
            hash(user_key)
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            self._log.warn("key", f"a request has no key, its response is not cached ({error!r})")
            return None
        return None if user_key is None else CacheRequest(method, url, headers, user_key)

    def find(self, cache_request: CacheRequest) -> CachedResponse | None:
        """Return the stored response that may replace an error of this request, or None."""
        if self._lock.is_held():  # this thread is changing the cache: a miss
            return None
        with self._lock:
            return self._cache.get(cache_request, self._clock(), self._max_stale_s)

    def policy(
        self, cache_request: CacheRequest, status: int, headers: Pairs, requested_s: float
    ) -> CachePolicy | None:
        """Return the destination of a body, or None if the response must not be stored.

        Args:
            cache_request: the request.
            status: of the response.
            headers: of the response.
            requested_s: monotonic seconds at which the request was sent.
        """
        if not storable(cache_request, status, headers):
            self._lock.run(partial(self._cache.invalidate, cache_request, status, self._clock()))
            return None

        def put(body: bytes) -> None:
            self._lock.run(partial(self._cache.put, cache_request, status, headers, body, requested_s))

        return CachePolicy(put, self._cache.max_body_bytes)

    def mark_unshareable(self, cache_request: CacheRequest) -> None:
        """Disable single flight for this request for a while: its response could not be shared."""
        self._lock.run(partial(self._unshareable.put, cache_request.base_key, None, self._clock()))

    def is_unshareable(self, cache_request: CacheRequest) -> bool:
        """Whether single flight is disabled for this request."""
        if self._lock.is_held():  # this thread is changing the entries: do not wait for another call
            return True
        with self._lock:
            return self._unshareable.get(cache_request.base_key, self._clock(), UNSHARED_S) is not None
