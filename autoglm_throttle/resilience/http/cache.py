"""Cache of HTTP responses: one per request, or one per variant of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from autoglm_throttle.resilience.http.answer import Pairs
from autoglm_throttle.resilience.http.caching_rules import (
    METHODS,
    CachedResponse,
    CacheRequest,
    cached_response,
    invalidates,
    storable,
    varies_by,
)
from autoglm_throttle.resilience.stale_cache import StaleCache

MAX_STORED_BYTES: Final = 64 * 1024 * 1024
"""Default maximum of stored bytes per feature; a single longer response is still stored.

64 responses of the default maximum length (1 MiB), or a thousand of 64 KiB; an eighth of a container of
512 MiB.
"""


@dataclass(frozen=True, slots=True)
class Variants:
    """Entry of a request with responses that vary by some of its fields."""

    names: tuple[str, ...]
    serial: int
    """Part of the keys of all variants: without this entry they cannot be found."""


class HttpCache:
    """Cache with a maximum number of responses and of bytes. It has no lock: threads need their own.

    Args:
        entries: maximum number of entries; one more for each request with variants.
        max_body_bytes: maximum length of a stored body.
        max_stored_bytes: maximum bytes of bodies, fields and URLs together.
    """

    __slots__ = ("_memory", "_serial", "max_body_bytes")

    def __init__(self, entries: int, max_body_bytes: int, max_stored_bytes: int = MAX_STORED_BYTES) -> None:
        self._memory: StaleCache[CachedResponse | Variants] = StaleCache(entries, max_stored_bytes)
        self._serial = 0
        self.max_body_bytes: int = max_body_bytes

    def __len__(self) -> int:
        return len(self._memory)

    def __repr__(self) -> str:
        return f"<HttpCache {self._memory!r}>"

    def put(
        self, request: CacheRequest, status: int, headers: Pairs, body: bytes, requested_s: float
    ) -> None:
        """Store a complete response, if it is storable and the stored one is not younger.

        Args:
            request: the request.
            status: of the response.
            headers: of the response.
            body: complete, as received.
            requested_s: monotonic seconds at which the request was sent.
        """
        if len(body) > self.max_body_bytes or not storable(request, status, headers):
            return
        answer = cached_response(request, headers, body, requested_s)
        key = self._storage_key(request, varies_by(headers) or (), requested_s)
        stored = self._lookup(key, requested_s)
        if not isinstance(stored, CachedResponse) or stored.created_s <= answer.created_s:
            self._memory.put(key, answer, requested_s, _size_of(request, answer))

    def get(self, request: CacheRequest, now: float, max_stale_s: float) -> CachedResponse | None:
        """Return the stored response that may replace an error of this request, or None.

        A response to GET also answers HEAD (RFC 9111 section 4); the caller omits the body.

        Args:
            request: the request.
            now: monotonic seconds.
            max_stale_s: seconds past its lifetime for which a response is used, unless it declares its own.
        """
        if not request.is_cacheable:
            return None
        cached = self._usable(request, now, max_stale_s)
        if cached is None and request.method == "HEAD":
            cached = self._usable(replace(request, method="GET"), now, max_stale_s)
        return cached

    def _usable(self, request: CacheRequest, now: float, max_stale_s: float) -> CachedResponse | None:
        cached = self._lookup(request.base_key, now)
        if isinstance(cached, Variants):
            cached = self._lookup((cached.serial, request.vary_key(cached.names)), now)
        return cached if isinstance(cached, CachedResponse) and cached.is_usable(now, max_stale_s) else None

    def invalidate(self, request: CacheRequest, status: int, now: float) -> None:
        """Remove the stored responses that a response invalidates.

        Args:
            request: the request.
            status: of its response.
            now: monotonic seconds.
        """
        if invalidates(request.method, status):
            for method in METHODS:
                # An age limit below 0 makes every entry too old, and `get` removes what is too old.
                self._memory.get(replace(request, method=method).base_key, now, max_stale_s=-1.0)

    def _lookup(self, key: Hashable, now: float) -> CachedResponse | Variants | None:
        cached = self._memory.get(key, now, max_stale_s=float("inf"))
        return None if cached is None else cached.value

    def _storage_key(self, request: CacheRequest, names: tuple[str, ...], now: float) -> Hashable:
        """Return the key of a response that varies by these fields."""
        if not names:
            return request.base_key
        variants = self._lookup(request.base_key, now)
        # Another Vary list: a new serial makes all earlier variants unreachable; they age out as LRU.
        if not isinstance(variants, Variants) or variants.names != names:
            self._serial += 1
            variants = Variants(names, self._serial)
            self._memory.put(request.base_key, variants, now, _key_size(request))
        return (variants.serial, request.vary_key(names))


def _size_of(request: CacheRequest, answer: CachedResponse) -> int:
    """Return the size of a response with its key."""
    fields = sum(len(name) + len(value) for name, value in answer.answer.headers)
    return _key_size(request) + fields + len(answer.answer.body)


def _key_size(request: CacheRequest) -> int:
    """Return the maximum size of a key: the URL, and the fields that its responses may vary by."""
    return len(request.url) + sum(len(name) + len(value) for name, value in request.headers)
