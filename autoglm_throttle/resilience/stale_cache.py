"""Bounded cache of earlier results, used as fallbacks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheEntry(Generic[T]):
    """One cached value."""

    value: T
    stored_s: float
    """Monotonic seconds of storage; a read does not change it."""
    weight: int = 0
    """Weight of the entry, in the unit of the cache."""

    def age_s(self, now: float) -> float:
        """Return the seconds since storage, at least 0."""
        return max(0.0, now - self.stored_s)


class StaleCache(Generic[T]):
    """LRU cache with a maximum number of entries and a maximum total weight.

    Values are stored as they are: copying is up to the caller. It has no lock: threads need their own.

    Args:
        entries: maximum number of entries; each holds its key and its value.
        max_weight: maximum total weight, in the unit of `put`; a single heavier entry is still stored; None:
            no limit.

    Raises:
        ValueError: ``entries`` is below 1.
    """

    __slots__ = ("_max_entries", "_max_weight", "_now_s", "entries", "weight")

    def __init__(self, entries: int, max_weight: int | None = None) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, is {entries!r}")
        self._max_entries = entries
        self.entries: OrderedDict[Hashable, CacheEntry[T]] = OrderedDict()
        """Entries by key, the least recently used first."""
        self._now_s = 0.0
        self._max_weight = max_weight
        self.weight: int = 0
        """Total weight of the entries."""

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        oldest_s = max((entry.age_s(self._now_s) for entry in self.entries.values()), default=None)
        oldest = "" if oldest_s is None else f", oldest {oldest_s:.0f} s"
        return f"<StaleCache {len(self)}/{self._max_entries}{oldest}>"

    def get(self, key: Hashable, now: float, max_stale_s: float) -> CacheEntry[T] | None:
        """Return the entry of a key if it is not too old; an expired entry is removed.

        Args:
            key: of the entry.
            now: monotonic seconds.
            max_stale_s: maximum age in seconds.
        """
        self._now_s = now
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.age_s(now) > max_stale_s:
            self.weight -= self.entries.pop(key).weight
            return None
        self.entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, value: T, now: float, weight: int = 0) -> None:
        """Store a value; it replaces the entry of the same key.

        Args:
            key: of the entry.
            value: to store.
            now: monotonic seconds.
            weight: of the entry, at least 0.
        """
        self._now_s = now
        older = self.entries.pop(key, None)
        self.weight += weight - (0 if older is None else older.weight)
        self.entries[key] = CacheEntry(value, now, weight)
        # The newest entry always stays, even if it alone exceeds the maximum weight.
        while len(self.entries) > self._max_entries or (len(self.entries) > 1 and self._is_full()):
            self.weight -= self.entries.popitem(last=False)[1].weight

    def _is_full(self) -> bool:
        return self._max_weight is not None and self.weight > self._max_weight
