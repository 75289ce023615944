"""A storage of the ``limits`` package: how it is made, asked, closed, and what its errors mean.

It is asked below the strategies of `limits`, by the two interfaces that these use themselves. So one question
brings all numbers, and a key holds no limit: one that is changed goes on with the units already counted.
"""

from __future__ import annotations

import errno
import inspect
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from autoglm_throttle.limiting.shared.store import Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoglm_throttle.model import UserLimit
    from autoglm_throttle.settings.storage_uri import StorageUri

US: Final = 1_000_000
"""Microseconds in a second."""

EDGE_US: Final = 1
"""Added to each wait: at the very instant the storages still count a unit."""


class View(Protocol):
    """What a storage counts for one user under one limit, at one moment."""

    @property
    def used(self) -> int:
        """Units counted."""
        ...

    def wait_us(self, units: int) -> int:
        """Until so many units have left; 0: now."""
        ...

    def after(self, units: int) -> View:
        """With so many units spent now."""
        ...


class Counting(Protocol):
    """One of the two ways in which a storage can count."""

    storage: object
    calls: int
    """Questions that were put to the storage."""

    async def look(self, key: str, limit: UserLimit) -> View:
        """What it counts now; spends nothing."""
        ...

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if there is room."""
        ...


@dataclass(frozen=True, slots=True)
class LogView:
    """Of a log of all units in the window only the number and the oldest are told."""

    window_s: int
    now_s: float
    oldest_s: float
    used: int

    def wait_us(self, units: int) -> int:
        """Until the oldest leaves: for several units, the earliest instant at which they could have left."""
        if units <= 0 or not self.used:
            return 0
        return max(0, math.ceil((self.oldest_s + self.window_s - self.now_s) * US)) + EDGE_US

    def after(self, units: int) -> LogView:
        """With units spent now."""
        oldest_s = self.oldest_s if self.used else self.now_s
        return LogView(self.window_s, self.now_s, oldest_s, self.used + units)


@dataclass(frozen=True, slots=True)
class CounterView:
    """Two fixed windows; of the one before, the share counts that lies within the last ``window_s``."""

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
        """Until the count has fallen by so many units; exact if nobody spends meanwhile.

        The count falls in a straight line: until the end of the present window, since the one before it
        fades, and after that, since the present one does.
        """
        room = self.used - units + 1
        if units <= 0 or room <= 0:
            return 0
        if self.present < room:
            wait_s = self.rest_s - (room - self.present) * self.window_s / self.before
        else:
            wait_s = self.rest_s + self.window_s * (1.0 - room / self.present)
        return max(0, math.ceil(wait_s * US)) + EDGE_US

    def after(self, units: int) -> CounterView:
        """With units spent now."""
        return CounterView(self.window_s, self.rest_s, self.before, self.present + units)


class MovingLog:
    """Counting by a log: exact."""

    def __init__(self, storage: Any) -> None:  # noqa: ANN401 - `limits` names no type for what can do this
        self.storage: Any = storage
        self.calls: int = 0

    async def look(self, key: str, limit: UserLimit) -> LogView:
        """What it counts now."""
        self.calls += 1
        start_s, used = await self.storage.get_moving_window(key, limit.limit, limit.window_s)
        oldest_s = start_s if used else 0.0  # of nothing some tell the present, and some None
        return LogView(limit.window_s, time.time(), oldest_s, used)

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if there is room."""
        self.calls += 1
        took = await self.storage.acquire_entry(key, limit.limit, limit.window_s, amount=units)
        return cast("bool", took)


class TwoCounters:
    """Counting by two fixed windows: approximate."""

    def __init__(self, storage: Any) -> None:  # noqa: ANN401 - as above
        self.storage: Any = storage
        self.calls: int = 0

    async def look(self, key: str, limit: UserLimit) -> CounterView:
        """What it counts now."""
        self.calls += 1
        before, _, present, expires_s = await self.storage.get_sliding_window(key, limit.window_s)
        return CounterView(limit.window_s, expires_s - limit.window_s, before, present)

    async def hit(self, key: str, limit: UserLimit, units: int) -> bool:
        """Spend, if there is room."""
        self.calls += 1
        took = await self.storage.acquire_sliding_window_entry(key, limit.limit, limit.window_s, units)
        return cast("bool", took)


def counting(storage: object) -> type[MovingLog | TwoCounters]:
    """How a storage can count; the log where it can.

    Raises:
        ValueError: it knows neither way.
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
    """Something by which to tell what the storage can, once it is known that it can be made.

    Raises:
        ValueError: naming the package that is missing, or saying that there is no such storage.
    """
    if uri.kind.startswith("mongodb"):  # its client wants a running loop
        from importlib.util import find_spec

        from limits.aio.storage import MongoDBStorage

        if find_spec("motor") is None:
            raise ValueError(_missing(uri))
        return MongoDBStorage
    return open_storage(uri)


def open_storage(uri: StorageUri) -> object:
    """A storage that has no connection yet.

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
    """The client with the connections, None if there are none: `limits` itself cannot close a storage."""
    inner = getattr(storage, "bridge", storage)  # before limits 5 the one for memcached had none
    client = getattr(inner, "_storage", None) or getattr(inner, "storage", None)
    return client if hasattr(client, "close") or hasattr(client, "connection_pool") else None


async def close(storage: object) -> None:
    """Close the connections of a storage. What its client cannot close any more is none of our business."""
    client = client_of(storage)
    try:
        closed = client.close() if hasattr(client, "close") else client.connection_pool.close()
        if inspect.isawaitable(closed):
            await closed
    except Exception:  # noqa: BLE001, S110 - whatever a client of any library raises on its way out
        pass


_NAMES: Final[Mapping[str, Trouble]] = {
    "ClusterNoAvailableNodes": Trouble.UNREACHABLE,
    "NoAvailableNodes": Trouble.UNREACHABLE,
    "NotPrimaryError": Trouble.READONLY,
    "ServerSelectionTimeoutError": Trouble.UNREACHABLE,
    "NetworkTimeout": Trouble.TIMEOUT,
    "AuthenticationError": Trouble.FORBIDDEN,
    "MemcachedAuthenticationError": Trouble.FORBIDDEN,
    "ConnectionNotAvailable": Trouble.TIMEOUT,
    "AutoReconnect": Trouble.LOST,
    "MemcachioConnectionError": Trouble.LOST,
}
"""Errors of emcache, memcachio and pymongo, by name: of what is not installed there is nothing else."""

_NOBODY: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENOENT})

_UNAUTHORIZED: Final = frozenset({13, 18})
"""MongoDB: Unauthorized, AuthenticationFailed."""


def trouble_of(error: BaseException) -> Trouble:
    """What an error of a storage means; what it was raised from says more than the error itself."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    troubles = (_named(each) or _of_system(each) for each in reversed(chain))
    return next((trouble for trouble in troubles if trouble is not None), Trouble.CONFUSED)


def _named(error: BaseException) -> Trouble | None:
    if getattr(error, "code", None) in _UNAUTHORIZED:
        return Trouble.FORBIDDEN
    if "out of memory" in str(error):
        return Trouble.FULL
    names = (kind.__name__ for kind in type(error).__mro__)
    return next((_NAMES[name] for name in names if name in _NAMES), None)


def _of_system(error: BaseException) -> Trouble | None:
    if isinstance(error, TimeoutError):
        return Trouble.TIMEOUT
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) in _NOBODY:
        return Trouble.UNREACHABLE
    if type(error).__name__ == "gaierror":
        return Trouble.UNREACHABLE
    return Trouble.LOST if isinstance(error, OSError | EOFError) else None
