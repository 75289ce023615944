"""Bounded cache of earlier results, used as fallbacks, and the cached results of functions."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.resilience.fallback import UNSET, Fallback

if TYPE_CHECKING:
    from autoglm_throttle.events import RateLimitedLogger
    from autoglm_throttle.types import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheEntry(Generic[T]):
    """One cached value."""

    value: T
    stored_s: float  # Monotonic seconds of storage; a read does not change it

    def age_s(self, now: float) -> float:
        """Return the seconds since storage, at least 0."""
        return max(0.0, now - self.stored_s)


class StaleCache(Generic[T]):
    """LRU cache with a maximum number of entries, at least 1; threads need a lock of their own."""

    __slots__ = ("_max_entries", "_now_s", "entries")

    def __init__(self, entries: int) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, is {entries!r}")
        self._max_entries = entries
        # Entries by key, the least recently used first.
        self.entries: OrderedDict[Hashable, CacheEntry[T]] = OrderedDict()
        self._now_s = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        oldest_s = max((entry.age_s(self._now_s) for entry in self.entries.values()), default=None)
        oldest = "" if oldest_s is None else f", oldest {oldest_s:.0f} s"
        return f"<StaleCache {len(self)}/{self._max_entries}{oldest}>"

    def get(self, key: Hashable, now: float, max_stale_s: float) -> CacheEntry[T] | None:
        """Return the entry of a key if it is not too old; an expired entry is removed."""
        self._now_s = now
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.age_s(now) > max_stale_s:
            del self.entries[key]
            return None
        self.entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, value: T, now: float) -> None:
        """Store a value; it replaces the entry of the same key."""
        self._now_s = now
        self.entries[key] = CacheEntry(value, now)
        self.entries.move_to_end(key)
        if len(self.entries) > self._max_entries:
            self.entries.popitem(last=False)


class ResultCache:
    """Cached results of one feature's functions, up to their maximum age.

    Stored and returned values are deep copies, so no caller can change the value of another. With
    ``shared_value`` no copies are made. A result that cannot be copied and a call without a key are not
    stored; this is logged, never raised.
    """

    __slots__ = ("_cache", "_clock", "_key", "_lock", "_log", "_max_stale_s", "_shares_values")

    def __init__(
        self,
        fallback: Fallback,
        entries: int,
        max_stale_s: float,
        clock: Clock,
        log: RateLimitedLogger,
    ) -> None:
        self._cache: StaleCache[object] = StaleCache(entries)
        self._key = fallback.key
        self._shares_values = fallback.shared_value
        self._max_stale_s = max_stale_s if fallback.max_stale_s is None else fallback.max_stale_s
        self._clock = clock
        self._log = log
        self._lock = SerialLock()

    def __repr__(self) -> str:
        return repr(self._cache)

    def key(
        self, fn: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Hashable | None:
        """Return the cache key of a call; None: it is not cached.

        The function is a part of the key, so several functions of one guard have separate results.
        """
        try:
            if self._key is not None:
                user_key = self._key(*args, **kwargs)
                key: Hashable = None if user_key is None else (fn, user_key)
            else:
                named = tuple(sorted(kwargs.items())) if kwargs else ()
                key = (fn, args, named, _types_of((*args, *(value for _, value in named))))
            # Unhashable arguments raise here and not later under the lock.
            hash(key)
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            self._log.warn("key", f"a call has no key, its result is not cached, pass key= ({error!r})")
            return None
        return key

    def find(self, key: Hashable) -> CacheEntry[object] | None:
        """Return the entry of a key, if it is not too old."""
        if self._lock.is_held():  # this thread is changing the cache: a miss
            return None
        with self._lock:
            return self._cache.get(key, self._clock(), self._max_stale_s)

    def store(self, key: Hashable, value: object) -> None:
        """Store a result; the value is already a copy."""
        self._lock.run(partial(self._cache.put, key, value, self._clock()))

    def copy_value(self, value: object) -> object:
        """Return a copy to store or to hand out; `UNSET` if it cannot be copied."""
        if self._shares_values:
            return value
        try:
            return copy.deepcopy(value)
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            self._log.warn("copy", f"a result cannot be copied, pass shared_value=True ({error!r})")
            return UNSET

    def get_copy(self, key: Hashable | None) -> object:
        """Return a copy of the cached result of a key, or `UNSET`."""
        entry = None if key is None else self.find(key)
        return UNSET if entry is None else self.copy_value(entry.value)


def _types_of(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return the types of values and of their items: 1, 1.0 and True are equal, but differ in type."""
    return tuple(map(_type_of, values))


def _type_of(value: object) -> object:
    if isinstance(value, tuple):
        return type(value), _types_of(tuple(value))
    if isinstance(value, frozenset):  # unordered, so each type stays with its value
        return type(value), frozenset((item, _type_of(item)) for item in value)
    return type(value)
