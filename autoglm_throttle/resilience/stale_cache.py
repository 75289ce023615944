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

    def age_s(self, now: float) -> float:
        """Seconds since it came, at least 0."""
        return max(0.0, now - self.stored_s)


class StaleCache(Generic[T]):
    """A bounded number of answers; the one that was used longest ago goes first.

    It keeps the values as they are: whoever puts them in or takes them out sees to copies. It has no lock:
    users in several threads bring their own.

    Args:
        entries: most answers kept; each holds its key and its value.

    Raises:
        ValueError: ``entries`` is below 1.
    """

    __slots__ = ("_entries", "_kept", "_now_s")

    def __init__(self, entries: int) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, is {entries!r}")
        self._entries = entries
        self._kept: OrderedDict[Hashable, Entry[T]] = OrderedDict()
        self._now_s = 0.0

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
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry

    def put(self, key: Hashable, value: T, now: float) -> None:
        """Keep an answer, in place of an older one with the same key."""
        self._now_s = now
        self._kept[key] = Entry(value, now)
        self._kept.move_to_end(key)
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)
