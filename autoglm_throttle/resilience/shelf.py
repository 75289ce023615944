"""The answers that are kept of one feature: what they are kept under, for how long, and their copies."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.resilience.feature import UNSET, Fallback

if TYPE_CHECKING:
    from autoglm_throttle.model import Clock
    from autoglm_throttle.resilience.seldom import Seldom
    from autoglm_throttle.resilience.stale_cache import Entry, StaleCache


class Shelf:
    """Keeps answers, and gives them out as long as they are of use.

    What is kept is a deep copy, and so is what is given out: neither the caller who had the answer first nor
    any later one can change it for the others. With ``shared_value`` there are no copies. An answer that
    cannot be copied, and a call that has no key, are not kept; that is logged, never raised.

    Args:
        fallback: says whether and how answers are kept.
        cache: of this feature alone.
        max_stale_s: seconds that an answer is of use where the fallback does not say.
        clock: monotonic seconds.
        log: is told of what could not be kept.
    """

    __slots__ = ("_cache", "_clock", "_inside", "_key", "_lock", "_log", "_max_stale_s", "_shared")

    def __init__(
        self, fallback: Fallback, cache: StaleCache[object], max_stale_s: float, clock: Clock, log: Seldom
    ) -> None:
        self._cache = cache
        self._key = fallback.key
        self._shared = fallback.shared_value
        self._max_stale_s = max_stale_s if fallback.max_stale_s is None else fallback.max_stale_s
        self._clock = clock
        self._log = log
        self.forget()

    def __repr__(self) -> str:
        return repr(self._cache)

    def forget(self) -> None:
        """In a fork: a new lock, as the parent's may have been taken; what is kept stays."""
        # Re-entrant: the garbage collector may run under it, and a finalizer may make a guarded call.
        self._lock = threading.RLock()
        self._inside = False

    def key(
        self, fn: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Hashable | None:
        """What the answer to a call is kept under; None: it is not kept.

        The function is a part of it, so several functions of one guard do not mix up their answers.
        """
        try:
            if self._key is not None:
                own = self._key(*args, **kwargs)
                key: Hashable = None if own is None else (fn, own)
            else:
                named = tuple(sorted(kwargs.items())) if kwargs else ()
                key = (fn, args, named, _kinds((*args, *(value for _, value in named))))
            hash(key)
        except Exception as error:  # noqa: BLE001 - whatever the user's function or arguments raise
            self._log.say("key", f"a call has no key, its answer is not kept, give key= ({error!r})")
            return None
        return key

    def find(self, key: Hashable) -> Entry[object] | None:
        """The answer under a key, if it is not too old."""
        with self._lock:
            if self._inside:
                return None
            self._inside = True
            try:
                return self._cache.get(key, self._clock(), self._max_stale_s)
            finally:
                self._inside = False

    def keep(self, key: Hashable, value: object) -> None:
        """Keep an answer; the value is a copy already."""
        with self._lock:
            if self._inside:
                return
            self._inside = True
            try:
                self._cache.put(key, value, self._clock())
            finally:
                self._inside = False

    def copied(self, value: object) -> object:
        """A copy that may be kept, or given out; `UNSET` where there is none."""
        if self._shared:
            return value
        try:
            return copy.deepcopy(value)
        except Exception as error:  # noqa: BLE001 - whatever the user's class raises
            self._log.say("copy", f"an answer cannot be copied, give shared_value=True ({error!r})")
            return UNSET

    def take(self, key: Hashable | None) -> object:
        """A copy of the answer under a key, or `UNSET`."""
        entry = None if key is None else self.find(key)
        return UNSET if entry is None else self.copied(entry.value)


def _kinds(values: tuple[object, ...]) -> tuple[object, ...]:
    """The types of values and of what is in them: what is equal, as 1, 1.0 and True, need not be the same."""
    return tuple(map(_kind, values))


def _kind(value: object) -> object:
    if isinstance(value, tuple):
        return type(value), _kinds(tuple(value))
    if isinstance(value, frozenset):  # equal ones may be in any order, so each type stays with its value
        return type(value), frozenset((item, _kind(item)) for item in value)
    return type(value)
