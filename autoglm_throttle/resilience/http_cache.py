"""Answers of HTTP that are kept: one per request, or one per variant of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from autoglm_throttle.resilience.http_answer import Pairs
from autoglm_throttle.resilience.http_stale import METHODS, Ask, Kept, keeping, kept, outdates, varies_by
from autoglm_throttle.resilience.stale_cache import StaleCache


@dataclass(frozen=True, slots=True)
class Variants:
    """Stands for a request whose answers are kept apart by some of its fields."""

    names: tuple[str, ...]
    serial: int
    """Part of their keys: without this mark none of them is found again."""


class HttpCache:
    """A bounded number of answers. It has no lock: users in several threads bring their own.

    Args:
        entries: most answers kept; one more for each request whose answers vary.
        body_bytes: longest body that is kept.
    """

    __slots__ = ("_memory", "_serial", "body_bytes")

    def __init__(self, entries: int, body_bytes: int) -> None:
        self._memory: StaleCache[Kept | Variants] = StaleCache(entries)
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
            self._memory.put(key, answer, asked_s)

    def get(self, ask: Ask, now: float, max_stale_s: float) -> Kept | None:
        """What may stand in for an error of this request, if anything may.

        Args:
            ask: the request.
            now: monotonic seconds.
            max_stale_s: how long past its lifetime an answer may that says nothing of that itself.
        """
        if not ask.keepable:
            return None
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
            self._memory.put(ask.own, mark, now)
        return (mark.serial, ask.varied(names))
