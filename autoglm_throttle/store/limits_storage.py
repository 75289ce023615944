"""A storage of the ``limits`` package: opening, queries, closing, and the meaning of its errors.

It is used below the strategies of `limits`, by the two interfaces that these use themselves. So one query
returns all numbers. A key holds no limit: after a change of the limit the counted units stay.
"""

from __future__ import annotations

import errno
import inspect
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from autoglm_throttle.store.user_limit_store import StoreErrorKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoglm_throttle.settings.storage_uri import StorageUri
    from autoglm_throttle.types import UserLimit

US: Final = 1_000_000
"""Microseconds in a second."""

EDGE_US: Final = 1
"""Added to each wait: at the exact instant the storages still count a unit."""


class StorageCountView(Protocol):
    """Units that a storage counts for one user under one limit, at one moment."""

    @property
    def used(self) -> int:
        """Units counted."""
        ...

    def wait_us(self, units: int) -> int:
        """Return the wait until ``units`` have left; 0: now."""
        ...

    def after(self, units: int) -> StorageCountView:
        """Return the view with ``units`` spent now."""
        ...


class Counting(Protocol):
    """One of the two ways in which a storage can count."""

    storage: object
    calls: int
    """Queries sent to the storage."""

    async def inspect(self, key: str, limit: UserLimit) -> StorageCountView:
        """Return the current count; spends nothing."""
        ...

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if the limit allows."""
        ...


@dataclass(frozen=True, slots=True)
class LogView:
    """View of a log of all units in the window: only their number and the oldest are known."""

    window_s: int
    now_s: float
    oldest_s: float
    used: int

    def wait_us(self, units: int) -> int:
        """Return the wait until the oldest unit leaves: for several units, a lower bound."""
        if units <= 0 or not self.used:
            return 0
        return max(0, math.ceil((self.oldest_s + self.window_s - self.now_s) * US)) + EDGE_US

    def after(self, units: int) -> LogView:
        """Return the view with ``units`` spent now."""
        oldest_s = self.oldest_s if self.used else self.now_s
        return LogView(self.window_s, self.now_s, oldest_s, self.used + units)


@dataclass(frozen=True, slots=True)
class CounterView:
    """Two fixed windows; of the previous one, the share within the last ``window_s`` counts."""

    window_s: int
    rest_s: float
    """Seconds to the end of the present fixed window."""
    before: int
    present: int

    @property
    def used(self) -> int:
        """Units counted, as `limits` rounds them."""
        return math.floor(self.before * self.rest_s / self.window_s + self.present)

    def wait_us(self, units: int) -> int:
        """Return the wait until the count has fallen by ``units``; exact without other requests.

        The count falls linearly: first the previous window fades, after its end the present one does.
        """
        excess = self.used - units + 1
        if units <= 0 or excess <= 0:
            return 0
        if self.present < excess:
            wait_s = self.rest_s - (excess - self.present) * self.window_s / self.before
        else:
            wait_s = self.rest_s + self.window_s * (1.0 - excess / self.present)
        return max(0, math.ceil(wait_s * US)) + EDGE_US

    def after(self, units: int) -> CounterView:
        """Return the view with ``units`` spent now."""
        return CounterView(self.window_s, self.rest_s, self.before, self.present + units)


class MovingLog:
    """Counting by a log: exact."""

    def __init__(self, storage: Any) -> None:  # noqa: ANN401 - `limits` names no type for what can do this
        self.storage: Any = storage
        self.calls: int = 0

    async def inspect(self, key: str, limit: UserLimit) -> LogView:
        """Return the current count."""
        self.calls += 1
        start_s, used = await self.storage.get_moving_window(key, limit.limit, limit.window_s)
        oldest_s = start_s if used else 0.0  # without units, some return the present and some None
        return LogView(limit.window_s, time.time(), oldest_s, used)

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if the limit allows."""
        self.calls += 1
        taken = await self.storage.acquire_entry(key, limit.limit, limit.window_s, amount=units)
        return cast("bool", taken)


class TwoCounters:
    """Counting by two fixed windows: approximate."""

    def __init__(self, storage: Any) -> None:  # noqa: ANN401 - as above
        self.storage: Any = storage
        self.calls: int = 0

    async def inspect(self, key: str, limit: UserLimit) -> CounterView:
        """Return the current count."""
        self.calls += 1
        before, _, present, expires_s = await self.storage.get_sliding_window(key, limit.window_s)
        return CounterView(limit.window_s, expires_s - limit.window_s, before, present)

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if the limit allows."""
        self.calls += 1
        taken = await self.storage.acquire_sliding_window_entry(key, limit.limit, limit.window_s, units)
        return cast("bool", taken)


def counting(storage: object) -> type[MovingLog | TwoCounters]:
    """Return the way in which a storage can count; the log if possible.

    Raises:
        ValueError: it supports neither way.
    """
    if hasattr(storage, "acquire_entry") and hasattr(storage, "get_moving_window"):
        return MovingLog
    if hasattr(storage, "acquire_sliding_window_entry") and hasattr(storage, "get_sliding_window"):
        return TwoCounters
    raise ValueError(
        "USER_STORAGE keeps fixed windows only, in which twice the limit passes within a moment; "
        "memcached can do better from limits 4.1 on"
    )


def sample(uri: StorageUri) -> object:
    """Return an object that shows the storage's abilities, once it is known that it can be made.

    Raises:
        ValueError: naming the package that is missing, or saying that there is no such storage.
    """
    if uri.kind.startswith("mongodb"):  # its client needs a running loop
        from importlib.util import find_spec

        from limits.aio.storage import MongoDBStorage

        if find_spec("motor") is None:
            raise ValueError(_missing(uri))
        return MongoDBStorage
    return open_storage(uri)


def open_storage(uri: StorageUri) -> object:
    """Open a storage without connecting it.

    Raises:
        ValueError: as for `sample`.
    """
    from importlib.util import find_spec

    from limits.errors import ConfigurationError
    from limits.storage import storage_from_string

    try:
        return storage_from_string(uri.text)
    except ConfigurationError:
        pass
    try:
        if uri.kind == "memcached" and find_spec("emcache"):  # the client of limits before 5
            return storage_from_string(uri.text, implementation="emcache")
    except ConfigurationError:
        pass
    raise ValueError(_missing(uri))


def _missing(uri: StorageUri) -> str:
    if uri.extra is None:
        return f"USER_STORAGE names a storage that limits does not know: async+{uri.kind}"
    return f"USER_STORAGE needs a client that is not installed: pip install 'limits[{uri.extra}]'"


def client_of(storage: object) -> Any:  # noqa: ANN401 - of whichever library
    """Return the client with the connections, None without any: `limits` itself cannot close a storage."""
    inner = getattr(storage, "bridge", storage)  # before limits 5 the one for memcached had none
    client = getattr(inner, "_storage", None) or getattr(inner, "storage", None)
    return client if hasattr(client, "close") or hasattr(client, "connection_pool") else None


async def close(storage: object) -> None:
    """Close the connections of a storage. Errors of its client are ignored."""
    client = client_of(storage)
    try:
        closed = client.close() if hasattr(client, "close") else client.connection_pool.close()
        if inspect.isawaitable(closed):
            await closed
    except Exception:  # noqa: BLE001, S110 - a client of any library may raise anything on close
        pass


_NAMES: Final[Mapping[str, StoreErrorKind]] = {
    "ClusterNoAvailableNodes": StoreErrorKind.UNREACHABLE,
    "NoAvailableNodes": StoreErrorKind.UNREACHABLE,
    "NotPrimaryError": StoreErrorKind.READONLY,
    "ServerSelectionTimeoutError": StoreErrorKind.UNREACHABLE,
    "NetworkTimeout": StoreErrorKind.TIMEOUT,
    "AuthenticationError": StoreErrorKind.FORBIDDEN,
    "MemcachedAuthenticationError": StoreErrorKind.FORBIDDEN,
    "ConnectionNotAvailable": StoreErrorKind.TIMEOUT,
    "AutoReconnect": StoreErrorKind.LOST,
    "MemcachioConnectionError": StoreErrorKind.LOST,
}
"""Errors of emcache, memcachio and pymongo, by name: these packages may not be installed."""

_UNREACHABLE_ERRNOS: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENOENT})

_UNAUTHORIZED: Final = frozenset({13, 18})
"""MongoDB: Unauthorized, AuthenticationFailed."""


def error_kind(error: BaseException) -> StoreErrorKind:
    """Classify an error of a storage; its cause is more precise than the error itself."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    kinds = (_kind_by_name(each) or _kind_of_system_error(each) for each in reversed(chain))
    return next((kind for kind in kinds if kind is not None), StoreErrorKind.CONFUSED)


def _kind_by_name(error: BaseException) -> StoreErrorKind | None:
    if getattr(error, "code", None) in _UNAUTHORIZED:
        return StoreErrorKind.FORBIDDEN
    if "out of memory" in str(error):
        return StoreErrorKind.FULL
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_NAMES[name] for name in names if name in _NAMES), None)


def _kind_of_system_error(error: BaseException) -> StoreErrorKind | None:
    if isinstance(error, TimeoutError):
        return StoreErrorKind.TIMEOUT
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) in _UNREACHABLE_ERRNOS:
        return StoreErrorKind.UNREACHABLE
    if type(error).__name__ == "gaierror":
        return StoreErrorKind.UNREACHABLE
    return StoreErrorKind.LOST if isinstance(error, OSError | EOFError) else None
