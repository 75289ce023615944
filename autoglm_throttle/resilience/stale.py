"""Bounded cache of earlier results, used as fallbacks, and calls of functions with cached results."""

from __future__ import annotations

import copy
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.calls import (
    Args,
    CallResult,
    GuardedAttempt,
    GuardTimeoutError,
    Kwargs,
    SettlingAwaitable,
    attempt,
    attempt_async,
)
from autoglm_throttle.resilience.drive import Call, Steps
from autoglm_throttle.resilience.fallback import UNSET, Fallback, Unset
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import DegradationSettings
from autoglm_throttle.types import Clock, GuardRejected, Outcome

T = TypeVar("T")

CACHEABLE_OUTCOMES: Final = frozenset({Outcome.SUCCESS, Outcome.SLOW})


class StaleCache(Generic[T]):
    """LRU cache with a maximum number of entries and a maximum age, for threads."""

    def __init__(self, max_entries: int, max_age_s: float, clock: Clock) -> None:
        self._max_entries = max_entries
        self._max_age_s = max_age_s
        self._clock = clock
        # Values by key, with the monotonic seconds of their storage; the least recently used one first.
        self._entries: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self.lock: SerialLock = SerialLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> T | Unset:
        """Return the value of a key if it is not too old, else `UNSET`; an expired one is removed."""
        if self.lock.is_held():  # this thread is changing the cache: a miss
            return UNSET
        with self.lock:
            entry = self._entries.get(key)
            if entry is None:
                return UNSET
            stored_s, value = entry
            if self._clock() - stored_s > self._max_age_s:
                del self._entries[key]
                return UNSET
            self._entries.move_to_end(key)
            return value

    def put(self, key: Hashable, value: T, replaces: Callable[[T], bool] | None = None) -> None:
        """Store a value, unless ``replaces`` prefers the value that the key has; a read does not renew it."""
        self.lock.run(partial(self._put, key, (self._clock(), value), replaces))

    def remove(self, key: Hashable) -> None:
        """Remove the value of a key, if there is one."""
        self.lock.run(partial(self._entries.pop, key, None))

    def _put(self, key: Hashable, entry: tuple[float, T], replaces: Callable[[T], bool] | None) -> None:
        present = self._entries.get(key)
        if present is None or replaces is None or replaces(present[1]):
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)


class ResultCache:
    """Cached results of one feature's functions, up to their maximum age.

    Stored and returned values are deep copies, so no caller can change the value of another. With
    ``shared_value`` no copies are made. A result that cannot be copied and a call without a key are not
    stored; this is logged, never raised.
    """

    def __init__(
        self,
        fallback: Fallback,
        settings: DegradationSettings,
        max_stale_s: float,
        clock: Clock,
        log: RateLimitedLogger,
    ) -> None:
        self._cache: StaleCache[object] = StaleCache(settings.cache_entries, max_stale_s, clock)
        self._max_bytes = settings.cache_body_bytes
        self._key = fallback.key
        self._shares_values = fallback.shared_value
        self._log = log

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
                key = (fn, args, named, _type_of((*args, *(value for _, value in named))))
            # Unhashable arguments raise here and not later under the lock.
            hash(key)
        except Exception as error:  # noqa: BLE001 - a user's key function may raise anything
            self._log.warn("key", f"a call has no key, its result is not cached, pass key= ({error!r})")
            return None
        return key

    def has(self, key: Hashable) -> bool:
        """Whether a result is stored that is not too old."""
        return self._cache.get(key) is not UNSET

    def store(self, key: Hashable | None, attempted: GuardedAttempt) -> object:
        """Store the value of a successful call; return a copy of any value, `UNSET` without one."""
        value = attempted.value
        if key is None or attempted.error is not None or attempted.rejection is not None:
            return UNSET
        if isinstance(value, SettlingAwaitable):  # not finished: nothing to cache or share
            return UNSET
        copied = self.copy_value(value)
        if copied is not UNSET and attempted.outcome in CACHEABLE_OUTCOMES:
            if is_small(key, copied, self._max_bytes):
                self._cache.put(key, copied)
            else:
                self._cache.remove(key)
                self._log.warn("size", f"a result above {self._max_bytes} bytes is not cached")
        return copied

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
        value = UNSET if key is None else self._cache.get(key)
        return UNSET if value is UNSET else self.copy_value(value)


def is_small(key: Hashable, value: object, max_bytes: int) -> bool:
    """Whether a key and a value take at most so many bytes; shared parts count once.

    Texts of the key count, but not objects among the arguments, such as the ``self`` of a method.
    """
    waiting, seen, size = [value], set[int](), 0
    keys: list[object] = [key]
    while keys:
        part = keys.pop()
        size += len(part) if isinstance(part, str | bytes) else 0
        keys += part if isinstance(part, tuple | frozenset) else ()
    while waiting and size <= max_bytes:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            try:
                # Arrays and tensors keep their data outside the object.
                size += sys.getsizeof(part, 0) + int(getattr(part, "nbytes", 0))
                waiting += _parts_of(part)
            except Exception:  # noqa: BLE001 - properties of a user's class may raise
                return False
    return size <= max_bytes


def _parts_of(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return () if isinstance(value, type) else (getattr(value, "__dict__", {}),)


def _type_of(value: object) -> object:
    # The types of items count too: 1, 1.0 and True are equal, but differ in type.
    if isinstance(value, tuple):
        return type(value), tuple(map(_type_of, value))
    if isinstance(value, frozenset):  # unordered, so each type stays with its value
        return type(value), frozenset((item, _type_of(item)) for item in value)
    return type(value)


class FunctionCall:
    """One call of a guarded function."""

    rejected = GuardRejected
    check = None  # any value of a fallback is accepted

    __slots__ = ("_attempt", "_name", "_results", "args", "flight_key", "kwargs", "limits", "replaces_values")

    def __init__(
        self,
        circuit: GuardState,
        results: ResultCache | None,
        fallback: Fallback | None,
        key: Hashable | None,
        call: tuple[Callable[..., Any], Args, Kwargs],
    ) -> None:
        self._results = results
        self._attempt = Call(attempt, attempt_async, (circuit, *call))
        self.flight_key: Hashable | None = key
        self.args: Args = call[1]
        self.kwargs: Kwargs = call[2]
        self._name = circuit.name
        self.limits: tuple[float, ...] = (circuit.timeout_s or math.inf,)
        self.replaces_values: bool = fallback is not None and bool(fallback.on_value)

    def has_cached(self) -> bool:
        """Whether a usable result is cached."""
        results, key = self._results, self.flight_key
        return results is not None and key is not None and results.has(key)

    def cached(self, cause: str) -> object:  # noqa: ARG002 - a value cannot state a cause
        """Return a copy of the cached result, or `UNSET`."""
        results = self._results
        return UNSET if results is None else results.get_copy(self.flight_key)

    def run(self) -> Steps[GuardedAttempt]:
        """Make the call alone, and cache its result."""
        return (yield from self.run_shared()).attempt

    def run_shared(self) -> Steps[CallResult]:
        """Make the call for all callers that wait for it, and cache its result."""
        attempted: GuardedAttempt = yield self._attempt
        results, error = self._results, attempted.error
        return CallResult(
            attempted,
            UNSET if results is None else results.store(self.flight_key, attempted),
            # A time-out of the function itself may be that of its caller: the next caller tries again.
            limits=(0.0,) if isinstance(error, TimeoutError) and type(error) is not GuardTimeoutError else (),
            trace=None if error is None else error.__traceback__,
        )

    def timed_out(self) -> Exception:
        """Return the exception of a wait for others that has exceeded the limit."""
        return GuardTimeoutError(f"{self._name} has not answered within {self.limits[0]:g} s")

    def copy_of(self, value: object) -> object:
        """Return a copy of the shared value."""
        results = self._results
        return UNSET if results is None else results.copy_value(value)

    def closing(self, attempted: GuardedAttempt) -> None:
        """Return None: a value needs no release."""
