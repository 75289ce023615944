"""Answers of HTTP that are kept: one per request, or one per variant of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from autoglm_throttle.resilience.http.answer import Pairs
from autoglm_throttle.resilience.http.stale import METHODS, Ask, Kept, keeping, kept, outdates, varies_by
from autoglm_throttle.resilience.stale_cache import StaleCache

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Most bytes that are kept for one feature, but for a single answer that is longer.

64 of the longest answers that are kept by default (1 MiB each), or a thousand of 64 KiB; an eighth of a
container of 512 MiB.
"""


@dataclass(frozen=True, slots=True)
class Variants:
    """Stands for a request whose answers are kept apart by some of its fields."""

    names: tuple[str, ...]
    serial: int
    """Part of their keys: without this mark none of them is found again."""


class HttpCache:
    """A bounded number of answers and of bytes. It has no lock: users in several threads bring their own.

    Args:
        entries: most answers kept; one more for each request whose answers vary.
        body_bytes: longest body that is kept.
        kept_bytes: most bytes of bodies, fields and URLs that are kept together.
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
        """Keep a complete answer, if it may be kept and none is kept that is younger.

        Args:
            ask: the request.
            status: of the answer.
            headers: of the answer.
            body: whole, as it came over the wire.
            asked_s: monotonic, when the request was sent.
        """
        if len(body) > self.body_bytes or not keeping(ask, status, headers):
            return
        answer = kept(ask, headers, body, asked_s)
        key = self._place(ask, varies_by(headers) or (), asked_s)
        other = self._at(key, asked_s)
        if not isinstance(other, Kept) or other.born_s <= answer.born_s:
            self._memory.put(key, answer, asked_s, _bytes(ask, answer))

    def get(self, ask: Ask, now: float, max_stale_s: float) -> Kept | None:
        """What may stand in for an error of this request, if anything may.

        What answers GET can answer HEAD without its body (RFC 9111 section 4), which is up to the caller.

        Args:
            ask: the request.
            now: monotonic seconds.
            max_stale_s: how long past its lifetime an answer may that says nothing of that itself.
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
        """Forget what an answer says is right no more.

        Args:
            ask: the request.
            status: of its answer.
            now: monotonic seconds.
        """
        if outdates(ask.method, status):
            for method in METHODS:
                self._memory.get(replace(ask, method=method).own, now, max_stale_s=-1.0)

    def _at(self, key: Hashable, now: float) -> Kept | Variants | None:
        found = self._memory.get(key, now, max_stale_s=float("inf"))
        return None if found is None else found.value

    def _place(self, ask: Ask, names: tuple[str, ...], now: float) -> Hashable:
        """Where an answer is kept that varies by these fields."""
        if not names:
            return ask.own
        mark = self._at(ask.own, now)
        if not isinstance(mark, Variants) or mark.names != names:
            self._serial += 1
            mark = Variants(names, self._serial)
            self._memory.put(ask.own, mark, now, _key_bytes(ask))
        return (mark.serial, ask.varied(names))


def _bytes(ask: Ask, answer: Kept) -> int:
    """What an answer takes with its key."""
    fields = sum(len(name) + len(value) for name, value in answer.answer.headers)
    return _key_bytes(ask) + fields + len(answer.answer.body)


def _key_bytes(ask: Ask) -> int:
    """What a key takes at most: the URL, and the fields that its answers may vary by."""
    return len(ask.url) + sum(len(name) + len(value) for name, value in ask.headers)
