"""Cache of HTTP responses: one per request, or one per variant of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from autoglm_throttle.resilience.http.answer import Pairs
from autoglm_throttle.resilience.http.stale import METHODS, Ask, Kept, keeping, kept, outdates, varies_by
from autoglm_throttle.resilience.stale_cache import StaleCache

KEPT_BYTES: Final = 64 * 1024 * 1024
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

    __slots__ = ("_memory", "_serial", "body_bytes")

    def __init__(self, entries: int, body_bytes: int, kept_bytes: int = KEPT_BYTES) -> None:
        self._memory: StaleCache[Kept | Variants] = StaleCache(entries, kept_bytes)
        self._serial = 0
        self.body_bytes: int = body_bytes

    def __len__(self) -> int:
        return len(self._memory)

    def __repr__(self) -> str:
        return f"<HttpCache {self._memory!r}>"

    def put(self, ask: Ask, status: int, headers: Pairs, body: bytes, asked_s: float) -> None:
        """Store a complete response, if it is storable and the stored one is not younger.

        Args:
            cache_request: the request.
            status: of the response.
            headers: of the response.
            body: complete, as received.
            requested_s: monotonic seconds at which the request was sent.
        """
        if len(body) > self.body_bytes or not keeping(ask, status, headers):
            return
        answer = kept(ask, headers, body, asked_s)
        key = self._place(ask, varies_by(headers) or (), asked_s)
        other = self._at(key, asked_s)
        if not isinstance(other, Kept) or other.born_s <= answer.born_s:
            self._memory.put(key, answer, asked_s, _bytes(ask, answer))

    def get(self, ask: Ask, now: float, max_stale_s: float) -> Kept | None:
        """Return the stored response that may replace an error of this request, or None.

        A response to GET also answers HEAD (RFC 9111 section 4); the caller omits the body.

        Args:
            cache_request: the request.
            now: monotonic seconds.
            max_stale_s: seconds past its lifetime for which a response is used, unless it declares its own.
        """
        if not ask.keepable:
            return None
        found = self._usable(ask, now, max_stale_s)
        if found is None and ask.method == "HEAD":
            found = self._usable(replace(ask, method="GET"), now, max_stale_s)
        return found

    def _usable(self, ask: Ask, now: float, max_stale_s: float) -> Kept | None:
        found = self._at(ask.own, now)
        if isinstance(found, Variants):
            found = self._at((found.serial, ask.varied(found.names)), now)
        return found if isinstance(found, Kept) and found.usable(now, max_stale_s) else None

    def outdated(self, ask: Ask, status: int, now: float) -> None:
        """Remove the stored responses that a response invalidates.

        Args:
            cache_request: the request.
            status: of its response.
            now: monotonic seconds.
        """
        if outdates(ask.method, status):
            for method in METHODS:
                # An age limit below 0 makes every entry too old, and `get` removes what is too old.
                self._memory.get(replace(ask, method=method).own, now, max_stale_s=-1.0)

    def _at(self, key: Hashable, now: float) -> Kept | Variants | None:
        found = self._memory.get(key, now, max_stale_s=float("inf"))
        return None if found is None else found.value

    def _place(self, ask: Ask, names: tuple[str, ...], now: float) -> Hashable:
        """Return the key of a response that varies by these fields."""
        if not names:
            return ask.own
        mark = self._at(ask.own, now)
        # Another Vary list: a new serial makes all earlier variants unreachable; they age out as LRU.
        if not isinstance(mark, Variants) or mark.names != names:
            self._serial += 1
            mark = Variants(names, self._serial)
            self._memory.put(ask.own, mark, now, _key_bytes(ask))
        return (mark.serial, ask.varied(names))


def _bytes(ask: Ask, answer: Kept) -> int:
    """Return the size of a response with its key."""
    fields = sum(len(name) + len(value) for name, value in answer.answer.headers)
    return _key_bytes(ask) + fields + len(answer.answer.body)


def _key_bytes(ask: Ask) -> int:
    """Return the maximum size of a key: the URL, and the fields that its responses may vary by."""
    return len(ask.url) + sum(len(name) + len(value) for name, value in ask.headers)
