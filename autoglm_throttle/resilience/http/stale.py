"""Which answers of a dependency may be kept, and how long each may stand in for an error.

RFC 5861 section 4 (stale-if-error) on top of RFC 9111. The cache is a *shared* one: what it keeps may go to
any user of the service. It answers errors and our own load only, never a call that the dependency could
answer, so freshness decides nothing but how long an answer may be used:

- Beyond its lifetime (``s-maxage``, else ``max-age``, else Expires less Date, else nothing) an answer may be
  used for its own ``stale-if-error``; where it says none, for the ``max_stale_s`` of the feature.
- ``must-revalidate`` and ``proxy-revalidate`` forbid any use beyond the lifetime, ``stale-if-error`` or not
  (RFC 9111 section 4.2.4: an explicit directive prohibits). ``s-maxage`` forbids it too (section 5.2.2.10),
  unless the same answer says ``stale-if-error``: that word of the origin is about this very case.
- ``no-cache`` forbids any use without asking first (section 5.2.2.4), which is what cannot be done here: such
  an answer is not kept. With field names it is taken the same way, as that section allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from autoglm_throttle.model import Rung
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs, sendable
from autoglm_throttle.resilience.http.fields import age_s, directives, joined, members, moment, seconds
from autoglm_throttle.resilience.http.personal import addressing, personal

METHODS = frozenset({"GET", "HEAD"})

SAFE = METHODS | {"OPTIONS", "TRACE"}
"""Methods that change nothing (RFC 9110 section 9.2.1)."""

GONE = frozenset({404, 410})

FORBID_KEEPING = frozenset({"no-store", "private", "no-cache"})

FORBID_STALE = frozenset({"must-revalidate", "proxy-revalidate"})

NOT_KEPT = frozenset(
    {
        "age",  # said anew at each use
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
"""The field that says of an answer that the dependency has not just given it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, as far as an answer kept depends on it."""

    method: str
    url: str
    headers: Pairs
    """Names in any case."""
    key: Hashable = None
    """The user's own, in place of method and URL; None: there is none."""

    @property
    def own(self) -> Hashable:
        """What stands for the request before the fields that its answers vary by."""
        if self.key is not None:
            return (self.method, self.key)
        return (self.method, self.url, addressing(self.headers))

    @property
    def keepable(self) -> bool:
        """Whether an answer to it may be kept, or given from what was kept.

        A request with any field that could tell who asks may have an answer for one user, and one with a body
        has an answer to that body, unless the user's own key tells them apart.
        """
        headers = self.headers
        if self.method not in METHODS or directives(headers).keys() & {"no-store", "no-cache"}:
            return False
        if self.key is not None:
            return True
        body = joined(headers, "transfer-encoding") or joined(headers, "content-length") or "0"
        return body == "0" and not personal(headers)

    def varied(self, names: Sequence[str]) -> Hashable:
        """The key of the answer to exactly this request.

        Args:
            names: of the fields that the answers vary by.
        """
        return (self.own, tuple((name, joined(self.headers, name)) for name in names))


def outdates(method: str, status: int) -> bool:
    """Whether an answer says that what was kept of its URL is right no more.

    A change that was made (RFC 9111 section 4.4), or word that there is nothing now.
    """
    return status in GONE or (method not in SAFE and status < 400)


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer of 200 that was kept, and what it says of its age."""

    answer: HttpAnswer
    asked_s: float
    """Monotonic, when its request was sent: the time on the way counts as age (RFC 9111 section 4.2.3)."""
    aged_s: int
    """How old it said it was when it came."""
    lifetime_s: int
    beyond_s: int | None
    """How long past its lifetime it may stand in for an error; None: it says nothing of that."""

    @property
    def born_s(self) -> float:
        """When it was new, by its own word; monotonic seconds."""
        return self.asked_s - self.aged_s

    def age_s(self, now: float) -> float:
        """How old it is; never less than it was."""
        return self.aged_s + max(0.0, now - self.asked_s)

    def usable(self, now: float, max_stale_s: float) -> bool:
        """Whether it may stand in for an error.

        Args:
            now: monotonic seconds.
            max_stale_s: how long past its lifetime it may where it says nothing of that itself.
        """
        beyond = max_stale_s if self.beyond_s is None else self.beyond_s
        return self.age_s(now) <= self.lifetime_s + beyond

    def aged(self, now: float) -> HttpAnswer:
        """The answer with its true age in whole seconds."""
        return self.answer.saying(("age", str(int(self.age_s(now)))))

    def answering(self, now: float, cause: str) -> HttpAnswer:
        """The answer to be given in place of another, with its true age in whole seconds.

        Args:
            now: monotonic seconds.
            cause: why the dependency has not answered.
        """
        return degraded(self.aged(now), Rung.STALE, cause)


def degraded(answer: HttpAnswer, rung: Rung, cause: str) -> HttpAnswer:
    """An answer that says what it is, as an RFC 9651 item: ``X-Degraded: static; cause=error``."""
    return answer.saying((DEGRADED, f"{rung}; cause={cause}"))


def lifetime_s(headers: Pairs) -> int:
    """How long an answer is fresh, in a shared cache and without guessing (RFC 9111 section 4.2.1)."""
    said = directives(headers)
    for word in ("s-maxage", "max-age"):
        if word in said:
            return seconds(said[word]) or 0
    expires, sent = moment(headers, "expires"), moment(headers, "date")
    return 0 if expires is None or sent is None else max(0, int(expires - sent))


def beyond_s(headers: Pairs) -> int | None:
    """How long past its lifetime an answer lets itself be used; None: it says nothing of that."""
    said = directives(headers)
    if said.keys() & FORBID_STALE:
        return 0
    if "stale-if-error" in said:
        return seconds(said["stale-if-error"]) or 0
    return 0 if "s-maxage" in said else None


def varies_by(headers: Pairs) -> tuple[str, ...] | None:
    """The names of the request's fields that an answer varies by; None: by anything (``*``)."""
    names = {name.strip().lower() for name in (joined(headers, "vary") or "").split(",")} - {""}
    return None if "*" in names else tuple(sorted(names))


def keeping(ask: Ask, status: int, headers: Pairs) -> bool:
    """Whether an answer may be kept once it is complete.

    Args:
        ask: the request.
        status: of the answer; only 200 is kept, so that no part of something stands for the whole.
        headers: of the answer.
    """
    if status != 200 or not ask.keepable or directives(headers).keys() & FORBID_KEEPING:
        return False
    return varies_by(headers) is not None and all(sendable(name, value) for name, value in headers)


def kept(ask: Ask, headers: Pairs, body: bytes, asked_s: float) -> Kept:
    """What is kept of an answer that may be.

    Args:
        ask: the request.
        headers: of the answer.
        body: whole, as it came over the wire.
        asked_s: monotonic, when the request was sent.
    """
    named = {name.strip().lower() for name in (joined(headers, "connection") or "").split(",")}
    fields = tuple(pair for pair in headers if pair[0].lower() not in NOT_KEPT | named)
    if ask.method == "GET" and not members(fields, "content-length"):
        fields = (*fields, ("content-length", str(len(body))))
    answer = HttpAnswer(200, fields, body)
    return Kept(answer, asked_s, age_s(headers), lifetime_s(headers), beyond_s(headers))
