"""Rules of the HTTP cache: storable responses, and the time for which each may replace an error.

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
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs, is_sendable
from autoglm_throttle.resilience.http.fields import (
    age_s,
    date_field_s,
    directives,
    joined,
    members,
    parse_seconds,
)
from autoglm_throttle.resilience.http.private_fields import addressing_fields, is_private
from autoglm_throttle.types import FallbackKind

METHODS = frozenset({"GET", "HEAD"})

SAFE = METHODS | {"OPTIONS", "TRACE"}
"""Safe methods (RFC 9110 section 9.2.1)."""

GONE_STATUSES = frozenset({404, 410})

FORBID_STORING = frozenset({"no-store", "private", "no-cache"})

FORBID_STALE = frozenset({"must-revalidate", "proxy-revalidate"})

UNSTORED_FIELDS = frozenset(
    {
        "age",  # computed at each use
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-connection",
        "set-cookie",  # the session of one user
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "warning",  # obsolete, RFC 9111 section 5.5
        "x-degraded",
    }
)
"""Fields of one connection (RFC 9111 section 3.1), of one user, or of one use."""

DEGRADED = "x-degraded"
"""Response field that marks an answer of a fallback."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """The parts of a request that determine its cache key."""

    method: str
    url: str
    headers: Pairs
    """Names in any case."""
    key: Hashable = None
    """Key of the user's function, instead of method and URL; None: there is none."""

    @property
    def base_key(self) -> Hashable:
        """Cache key without the fields that the responses vary by."""
        if self.key is not None:
            return (self.method, self.key)
        return (self.method, self.url, addressing_fields(self.headers))

    @property
    def is_cacheable(self) -> bool:
        """Whether a response may be stored for this request, or a stored one used.

        A request with a field that may identify the user can have a private response. A request with a body
        has a response for that body. Both need the user's own key.
        """
        headers = self.headers
        if self.method not in METHODS or directives(headers).keys() & {"no-store", "no-cache"}:
            return False
        if self.key is not None:
            return True
        body = joined(headers, "transfer-encoding") or joined(headers, "content-length") or "0"
        return body == "0" and not is_private(headers)

    def vary_key(self, names: Sequence[str]) -> Hashable:
        """Return the cache key with the values of the varying fields.

        Args:
            names: of the fields that the responses vary by.
        """
        return (self.base_key, tuple((name, joined(self.headers, name)) for name in names))


def invalidates(method: str, status: int) -> bool:
    """Whether a response invalidates the stored responses of its URL.

    True after a successful unsafe method (RFC 9111 section 4.4), and for 404 and 410.
    """
    return status in GONE_STATUSES or (method not in SAFE and status < 400)


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A stored response with status 200, and its age figures."""

    answer: HttpAnswer
    requested_s: float
    """Monotonic send time of its request: transfer time counts as age (RFC 9111 section 4.2.3)."""
    initial_age_s: int
    """Age in seconds that it declared on arrival."""
    lifetime_s: int
    stale_allowance_s: int | None
    """Seconds past its lifetime for which it may replace an error; None: not declared."""

    @property
    def created_s(self) -> float:
        """Monotonic seconds at which it was created, by its declared age."""
        return self.requested_s - self.initial_age_s

    def age_s(self, now: float) -> float:
        """Return its age in seconds, at least the declared one."""
        return self.initial_age_s + max(0.0, now - self.requested_s)

    def is_usable(self, now: float, max_stale_s: float) -> bool:
        """Whether it may replace an error.

        Args:
            now: monotonic seconds.
            max_stale_s: seconds past its lifetime for which it may be used, unless it declares its own.
        """
        allowance_s = max_stale_s if self.stale_allowance_s is None else self.stale_allowance_s
        return self.age_s(now) <= self.lifetime_s + allowance_s

    def with_age(self, now: float) -> HttpAnswer:
        """Return the response with its current age in whole seconds."""
        return self.answer.with_header(("age", str(int(self.age_s(now)))))

    def as_fallback(self, now: float, cause: str) -> HttpAnswer:
        """Return the response as a fallback, with its current age in whole seconds.

        Args:
            now: monotonic seconds.
            cause: of the fallback.
        """
        return mark_degraded(self.with_age(now), FallbackKind.STALE, cause)


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
    """Whether a response may be stored once it is complete.

    Args:
        request: the request.
        status: of the response; only 200 is stored, since a partial response must not replace a full one.
        headers: of the response.
    """
    if status != 200 or not request.is_cacheable or directives(headers).keys() & FORBID_STORING:
        return False
    return varies_by(headers) is not None and all(is_sendable(name, value) for name, value in headers)


def cached_response(request: CacheRequest, headers: Pairs, body: bytes, requested_s: float) -> CachedResponse:
    """Build the stored form of a response.

    Args:
        request: the request.
        headers: of the response.
        body: complete, as received.
        requested_s: monotonic seconds at which the request was sent.
    """
    named = {name.strip().lower() for name in (joined(headers, "connection") or "").split(",")}
    fields = tuple(pair for pair in headers if pair[0].lower() not in UNSTORED_FIELDS | named)
    if request.method == "GET" and not members(fields, "content-length"):
        fields = (*fields, ("content-length", str(len(body))))
    answer = HttpAnswer(200, fields, body)
    return CachedResponse(
        answer, requested_s, age_s(headers), lifetime_s(headers), stale_allowance_s(headers)
    )
