"""Cache of HTTP responses: storable responses, and the time for which each may replace an error.

RFC 5861 section 4 (stale-if-error) on top of RFC 9111. The cache is a *shared* one: a stored response may go
to any user of the service. It answers only errors and overload, never a call that the dependency could
answer. So freshness matters only for the time for which a response may be used:

- Beyond its lifetime (``s-maxage``, else ``max-age``, else Expires less Date, else 0) a response may be
  used for its own ``stale-if-error``; without that directive, for the ``max_stale_s`` of the feature.
- ``must-revalidate`` and ``proxy-revalidate`` forbid any use beyond the lifetime, ``stale-if-error`` or not
  (RFC 9111 section 4.2.4: an explicit directive prohibits). ``s-maxage`` forbids it too (section 5.2.2.10),
  unless the same response has ``stale-if-error``, which is specific to this case.
- ``no-cache`` forbids any use without revalidation (section 5.2.2.4), which an unavailable dependency cannot
  do: such a response is not stored. With field names it is treated the same, as that section allows.

Only responses to GET are stored, one for each request. With ``Vary`` it answers only requests with the same
values of the named fields, and another one of them takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.fallback import UNSET, Unset
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs, is_sendable
from autoglm_throttle.resilience.http.fields import (
    addressing_fields,
    age_s,
    date_field_s,
    directives,
    is_private,
    joined,
    members,
    parse_seconds,
)
from autoglm_throttle.resilience.stale import StaleCache
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Clock, FallbackKind

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # Safe methods (RFC 9110 section 9.2.1)

GONE_STATUSES: Final = frozenset({404, 410})

FORBID_STORING: Final = frozenset({"no-store", "private", "no-cache"})

FORBID_STALE: Final = frozenset({"must-revalidate", "proxy-revalidate"})

# Fields of one connection (RFC 9111 section 3.1), or of one use (``Age``).
UNSTORED_FIELDS: Final = frozenset(
    {
        *("age", "connection", "keep-alive", "proxy-authenticate", "proxy-authentication-info"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("warning", "x-degraded"),  # ``Warning`` is obsolete, RFC 9111 section 5.5
    }
)

ENDLESS_TYPES: Final = ("text/event-stream", "multipart/x-mixed-replace")

DEGRADED: Final = "x-degraded"  # Response field that marks an answer of a fallback

# Seconds without single flight after a response that could not be shared. An unshared wait doubles the
# duration of a call. Once in 10 s, the default open period of a breaker, that is acceptable, and a response
# that has become sharable is soon detected.
UNSHARED_S: Final = 10.0

# Maximum number of such requests remembered; beyond it some wait once more without a result.
UNSHARED_ENTRIES: Final = 256

# Computes the cache key of a request, instead of method and URL; None: do not cache.
CacheKey = Callable[[Any], Hashable | None]


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """The parts of a request that determine its cache key."""

    method: str
    url: str
    headers: Pairs  # Names in any case
    key: Hashable = None  # Key of the user's function, instead of method and URL; None: there is none
    route: Hashable = None  # Parts of the address that no function of the user replaces

    @property
    def base_key(self) -> Hashable:
        """Cache key."""
        if self.key is not None:
            return (self.method, self.key, self.route)
        return (self.method, self.url, self.route, addressing_fields(self.headers))

    @property
    def is_cacheable(self) -> bool:
        """Whether a response may be stored for this request, or a stored one used.

        A request with a field that may identify the user can have a private response. A request with a body
        has a response for that body. Both need the user's own key.
        """
        headers = self.headers
        if self.method != "GET" or directives(headers).keys() & {"no-store", "no-cache"}:
            return False
        if self.key is not None:
            return True
        body = joined(headers, "transfer-encoding") or joined(headers, "content-length") or "0"
        return body == "0" and not is_private(headers)


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A stored response with status 200, or a shared one of any status, and its age figures."""

    answer: HttpAnswer
    # Names and values of the request fields that it varies by; None for a field that was absent.
    varying: tuple[tuple[str, str | None], ...]
    # Monotonic send time of its request: transfer time counts as age (RFC 9111 section 4.2.3).
    requested_s: float
    initial_age_s: int  # Age in seconds that it declared on arrival
    lifetime_s: int
    # Seconds past its lifetime for which it may replace an error; None: not declared.
    stale_allowance_s: int | None

    @property
    def created_s(self) -> float:
        """Monotonic seconds at which it was created, by its declared age."""
        return self.requested_s - self.initial_age_s

    def age_s(self, now: float) -> float:
        """Return its age in seconds, at least the declared one."""
        return self.initial_age_s + max(0.0, now - self.requested_s)

    def fits(self, request: CacheRequest) -> bool:
        """Whether it answers a request with the same key: by the fields that it varies by."""
        return all(joined(request.headers, name) == value for name, value in self.varying)

    def is_usable(self, now: float, max_stale_s: float) -> bool:
        """Whether it may replace an error."""
        allowance_s = max_stale_s if self.stale_allowance_s is None else self.stale_allowance_s
        return self.age_s(now) <= self.lifetime_s + allowance_s

    def with_age(self, now: float) -> HttpAnswer:
        """Return the response with its current age in whole seconds."""
        return self.answer.with_header(("age", str(int(self.age_s(now)))))


@dataclass(slots=True)
class CachePolicy:
    """Collects a body that may be cached."""

    put: Callable[[bytes], None]  # Called with the complete body, as received
    max_body_bytes: int  # Maximum length of a cached body
    parts: list[bytes] = field(default_factory=list)
    _length: int = 0

    def add(self, part: bytes) -> None:
        """Add a part of the body. Of a body that is too long no part is kept."""
        self._length += len(part)
        if self._length <= self.max_body_bytes:
            self.parts.append(part)
        else:
            self.parts.clear()

    def store(self) -> None:
        """Store the complete body, unless it is too long."""
        if self._length <= self.max_body_bytes:
            self.put(b"".join(self.parts))


class ResponseCache:
    """Cached responses of one feature, for threads, and its requests without single flight."""

    def __init__(
        self,
        key: CacheKey | None,
        settings: DegradationSettings,
        max_stale_s: float,
        clock: Clock,
        log: RateLimitedLogger,
    ) -> None:
        self._cache: StaleCache[CachedResponse] = StaleCache(settings.cache_entries, math.inf, clock)
        self._clock = clock
        self._key = key
        self._log = log
        self._max_stale_s = max_stale_s
        self._unshareable: StaleCache[None] = StaleCache(UNSHARED_ENTRIES, UNSHARED_S, clock)
        self.max_body_bytes: int = settings.cache_body_bytes

    def request(
        self,
        method: str,
        url: str,
        headers: Pairs,
        request: object,
        key: CacheKey | None = None,
        route: Hashable = None,
    ) -> CacheRequest | None:
        """Return the cache request of an HTTP request; None: it is not cached."""
        make = self._key if key is None else key
        if make is None:
            return CacheRequest(method, url, headers, route=route)
        try:
            user_key = make(request)
            hash(user_key)
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            self._log.warn("key", f"a request has no key, its response is not cached ({error!r})")
            return None
        return None if user_key is None else CacheRequest(method, url, headers, user_key, route)

    def find(self, request: CacheRequest | None) -> CachedResponse | None:
        """Return the stored response that may replace an error of this request, or None."""
        if request is None or not request.is_cacheable:
            return None
        response = self._cache.get(request.base_key)
        if isinstance(response, Unset) or not response.is_usable(self._clock(), self._max_stale_s):
            return None
        return response if response.fits(request) else None

    def find_answer(self, request: CacheRequest | None, cause: str) -> object:
        """Return the stored response as a fallback, with its current age; `UNSET` without one."""
        cached = self.find(request)
        if cached is None:
            return UNSET
        return mark_degraded(cached.with_age(self._clock()), FallbackKind.STALE, cause)

    def policy(
        self, request: CacheRequest | None, status: int, headers: Pairs, requested_s: float
    ) -> CachePolicy | None:
        """Return the destination of a body, or None if the response must not be stored."""
        if request is None:
            return None
        if storable(request, status, headers):
            return CachePolicy(partial(self._put, request, headers, requested_s), self.max_body_bytes)
        if invalidates(request.method, status):
            self._cache.remove(replace(request, method="GET").base_key)
        return None

    def mark_unshareable(self, request: CacheRequest) -> None:
        """Disable single flight for this request for a while: its response could not be shared."""
        self._unshareable.put(request.base_key, None)

    def is_unshareable(self, request: CacheRequest) -> bool:
        """Whether single flight is disabled for this request."""
        # A thread that is changing a cache must not wait for another call.
        is_changing = self._cache.lock.is_held() or self._unshareable.lock.is_held()
        return is_changing or self._unshareable.get(request.base_key) is not UNSET

    def _put(self, request: CacheRequest, headers: Pairs, requested_s: float, body: bytes) -> None:
        if len(body) <= self.max_body_bytes:
            response = cached_response(request, headers, body, requested_s)
            # A slow response must not replace a younger one.
            self._cache.put(request.base_key, response, lambda stored: stored.created_s <= response.created_s)


def invalidates(method: str, status: int) -> bool:
    """Whether a response invalidates the stored one of its URL (RFC 9111 section 4.4)."""
    return status in GONE_STATUSES or (method not in SAFE and status < 400)


def mark_degraded(answer: HttpAnswer, fallback_kind: FallbackKind, cause: str) -> HttpAnswer:
    """Mark a response as degraded with an RFC 9651 item: ``X-Degraded: static; cause=error``."""
    return answer.with_header((DEGRADED, f"{fallback_kind}; cause={cause}"))


def lifetime_s(headers: Pairs) -> int:
    """Return the freshness lifetime in a shared cache, without heuristics (RFC 9111 section 4.2.1)."""
    values = directives(headers)
    for directive in ("s-maxage", "max-age"):
        if directive in values:
            return parse_seconds(values[directive]) or 0
    expires, sent = date_field_s(headers, "expires"), date_field_s(headers, "date")
    return 0 if expires is None or sent is None else max(0, int(expires - sent))


def stale_allowance_s(headers: Pairs) -> int | None:
    """Return the seconds past its lifetime for which a response may be used; None: not declared."""
    values = directives(headers)
    if values.keys() & FORBID_STALE:
        return 0
    if "stale-if-error" in values:
        return parse_seconds(values["stale-if-error"]) or 0
    return 0 if "s-maxage" in values else None


def varies_by(headers: Pairs) -> tuple[str, ...] | None:
    """Return the request fields that a response varies by; None: any (``*``)."""
    names = {name.strip().lower() for name in (joined(headers, "vary") or "").split(",")} - {""}
    return None if "*" in names else tuple(sorted(names))


def storable(request: CacheRequest, status: int, headers: Pairs) -> bool:
    """Whether a response may be stored once it is complete."""
    return status == 200 and request.is_cacheable and is_shareable(headers)


def is_shareable(headers: Pairs) -> bool:
    """Whether a response may be used for others; a cookie shows that its body may be for one user."""
    if directives(headers).keys() & FORBID_STORING or members(headers, "set-cookie"):
        return False
    return varies_by(headers) is not None and all(is_sendable(name, value) for name, value in headers)


def is_endless(headers: Pairs) -> bool:
    """Whether the body is a stream of events or pictures, which nobody may wait for to end."""
    return (joined(headers, "content-type") or "").lower().startswith(ENDLESS_TYPES)


def cached_response(
    request: CacheRequest, headers: Pairs, body: bytes, requested_s: float, status: int = 200
) -> CachedResponse:
    """Build the stored form of a response."""
    named = {name.strip().lower() for name in (joined(headers, "connection") or "").split(",")}
    fields = tuple(pair for pair in headers if pair[0].lower() not in UNSTORED_FIELDS | named)
    if not members(fields, "content-length"):
        fields = (*fields, ("content-length", str(len(body))))
    return CachedResponse(
        HttpAnswer(status, fields, body),
        tuple((name, joined(request.headers, name)) for name in varies_by(headers) or ()),
        requested_s,
        age_s(headers),
        lifetime_s(headers),
        stale_allowance_s(headers),
    )
