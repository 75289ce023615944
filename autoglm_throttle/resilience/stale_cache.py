"""Answers that were right a while ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One answer that is kept."""

    value: T
    stored_s: float
    """Monotonic seconds at which it came; giving it out changes nothing about it."""
    weight: int = 0
    """What it takes of the room, in the unit of the cache."""

    def age_s(self, now: float) -> float:
        """Seconds since it came, at least 0."""
        return max(0.0, now - self.stored_s)


class StaleCache(Generic[T]):
    """A bounded number of answers of a bounded weight; the one that was used longest ago goes first.

    It keeps the values as they are: whoever puts them in or takes them out sees to copies. It has no lock:
    users in several threads bring their own.

    Args:
        entries: most answers kept; each holds its key and its value.
        room: most that they weigh together, in the unit of `put`, but for a single one that is heavier;
            None: any.

    Raises:
        ValueError: ``entries`` is below 1.
    """

    __slots__ = ("_entries", "_kept", "_now_s", "_room", "weight")

    def __init__(self, entries: int, room: int | None = None) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, is {entries!r}")
        self._entries = entries
        self._kept: OrderedDict[Hashable, Entry[T]] = OrderedDict()
        self._now_s = 0.0
        self._room = room
        self.weight: int = 0
        """Of all that is kept."""

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        oldest_s = max((entry.age_s(self._now_s) for entry in self._kept.values()), default=None)
        oldest = "" if oldest_s is None else f", oldest {oldest_s:.0f} s"
        return f"<StaleCache {len(self)}/{self._entries}{oldest}>"

    def get(self, key: Hashable, now: float, max_stale_s: float) -> Entry[T] | None:
        """The answer that is kept under a key, if it is of use.

        One that is too old is forgotten: it grows no younger.

        Args:
            key: what it was put under.
            now: monotonic seconds.
            max_stale_s: greatest age in seconds.
        """
        self._now_s = now
        entry = self._kept.get(key)
        if entry is None:
            return None
        if entry.age_s(now) > max_stale_s:
            self.weight -= self._kept.pop(key).weight
            return None
        self._kept.move_to_end(key)
        return entry

    def put(self, key: Hashable, value: T, now: float, weight: int = 0) -> None:
        """Keep an answer, in place of an older one with the same key.

        Args:
            key: what it is found by.
            value: of the answer.
            now: monotonic seconds.
            weight: what it takes of the room, at least 0.
        """
        self._now_s = now
        older = self._kept.pop(key, None)
        self.weight += weight - (0 if older is None else older.weight)
        self._kept[key] = Entry(value, now, weight)
        while len(self._kept) > self._entries or (len(self._kept) > 1 and self._is_full()):
            self.weight -= self._kept.popitem(last=False)[1].weight

    def _is_full(self) -> bool:
        return self._room is not None and self.weight > self._room
