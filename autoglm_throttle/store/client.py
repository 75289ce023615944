"""Clients of redis-py from a URL: one for each running event loop, synchronous ones for threads.

A connection belongs to the event loop that created it, and holds that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.settings.groups.store import RedisAddress, parse_redis_url
from autoglm_throttle.store.protocol import StoreErrorKind

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable

    from autoglm_throttle.settings.groups.store import RedisLogin, StoreSettings
    from autoglm_throttle.store.health import StoreHealth

    _ClientEntry: TypeAlias = "tuple[asyncio.AbstractEventLoop, AsyncClient, AsyncGenerator[None]]"
    _ClientAndParts: TypeAlias = "tuple[AsyncClient, list[AsyncClient]]"

# Maximum for each client, and for each node of a cluster, with at most two calls in flight.
CONNECTIONS: Final = 4

# RESP2: our replies are flat arrays of integers, and it saves the HELLO of each connection.
PROTOCOL: Final = 2

# For the connection and the replies of a synchronous client. No decision waits for it; it frees the thread.
TIMEOUT_S: Final = 0.25

# Reads of at most 64 KiB for one reply, 16 MiB in all: the rows of 1024 hosts with 8 devices have 1.5 MiB.
MOST_READS: Final = 256

PING_S: Final = 1.0
# The server is pinged once a second; three seconds without any message count as a lost connection.
SILENCE_LIMIT_S: Final = 3.0

_socket_of = attrgetter("connection._sock")  # redis-py has no public name for it
AsyncClient: TypeAlias = Any  # ``redis.asyncio.Redis`` or ``RedisCluster``, or the double of a test
_Parser: TypeAlias = Any  # Of either client
SyncClient: TypeAlias = Any  # ``redis.Redis`` or ``redis.RedisCluster``


class RedisClients:
    """The clients of one URL, created on first use; ``connect`` creates the asyncio client of a test instead.

    A ValueError means that there is neither, an ImportError names the missing package.
    """

    def __init__(self, settings: StoreSettings, connect: Callable[[], AsyncClient] | None = None) -> None:
        self.url: RedisAddress | None = None  # The parsed URL; None if ``connect`` creates the clients
        self._settings = settings
        self._connect = connect
        if connect is None:
            if settings.redis_url is None:
                raise ValueError("there is no URL")
            self.url = parse_redis_url(settings.redis_url.get_secret_value())
        # Whether the keys of one call must lie in one slot.
        self.cluster: bool = self.url is not None and self.url.topology == "cluster"
        self.made: int = 0  # Asyncio clients created since construction
        # Weak keys would never let go: a client holds its loop. The async generator in the entry
        # removes it: `asyncio.run` ends the generators of a loop before it closes the loop.
        self._entries: dict[int, _ClientEntry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        require_redis()

    def __len__(self) -> int:
        return len(self._entries)

    def current(self) -> AsyncClient:
        """Return the client of the running asyncio loop: created at the first call, closed with the loop."""
        loop = asyncio.get_running_loop()
        entry = self._entries.get(id(loop))
        return entry[1] if entry is not None else self._make(loop)

    def close_current(self) -> None:
        """Close all clients, each in its own loop; from any thread, without waiting."""
        while self._entries:
            # Another thread took the last one, or the loop is closed already.
            with contextlib.suppress(KeyError, RuntimeError):
                _, (loop, _, closer) = self._entries.popitem()
                loop.call_soon_threadsafe(self._close, loop, closer)

    def sync(self, timeout_s: float) -> SyncClient:
        """Create a client of one connection, without retries, for a thread, which closes it."""
        if self.url is None:
            raise ValueError("there is no URL to make a synchronous client from")
        return _client(self.url, (timeout_s, timeout_s), 1, is_async=False)[0]

    def _make(self, loop: asyncio.AbstractEventLoop) -> AsyncClient:
        for key, (other, _, _) in list(self._entries.items()):
            if other.is_closed():  # closed by hand, without ending its generators
                self._entries.pop(key, None)
        if self.url is not None:
            settings = self._settings
            timeouts = settings.redis_connect_s, settings.redis_read_s
            client, ends = _client(self.url, timeouts, max_connections(settings), is_async=True)
        else:
            client = self._connect() if self._connect is not None else None
            ends = [client]
        closer = _closer(self._entries, loop, ends)
        with contextlib.suppress(StopIteration):  # runs to its yield: now the loop tracks it
            closer.__anext__().send(None)
        self._entries[id(loop)] = (loop, client, closer)
        self.made += 1
        return client

    def _close(self, loop: asyncio.AbstractEventLoop, closer: AsyncGenerator[None]) -> None:
        task = loop.create_task(closer.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Subscriber:
    """Subscription of one channel, supervised by pings; after a failure it is made again, with a callback."""

    def __init__(
        self,
        connect: Callable[[], SyncClient],
        channel: str,
        on_message: Callable[[Any], None],
        on_subscribed: Callable[[], None],
        health: StoreHealth,
    ) -> None:
        self.failures: int = 0  # connections that failed or were lost
        self.last_error: str | None = None  # text of the newest failure; kept after a recovery
        # Whether the server has confirmed the subscription: changes are received at once.
        self.is_listening: bool = False
        self.due_s: float = -math.inf  # time of the next subscription, or of the next ping
        self.on_message: Callable[[Any], None] = on_message
        self.on_subscribed: Callable[[], None] = on_subscribed
        self._connect = connect
        self._channel = channel
        self._client: SyncClient = None
        self._pubsub: Any = None
        self._received_s = 0.0
        self._health = health  # of the subscription: when it is made again

    def poll(self, now: float) -> socket.socket | None:
        """Receive all messages; subscribe or ping where due. Return the socket to wait for, or None."""
        try:
            if self._pubsub is None and now >= self.due_s:
                self._client = self._connect()
                self._pubsub = self._client.pubsub()
                self._pubsub.subscribe(self._channel)
                self._received_s, self.due_s = now, now + PING_S
            if self._pubsub is not None:
                self._receive(now)
                return _socket_of(self._pubsub)  # type: ignore[no-any-return]  # redis-py's
        except Exception as error:  # noqa: BLE001 - any client error: it subscribes again
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {error}"
            self.close()
            self._health.try_begin_probe(now)
            self._health.record_call(StoreErrorKind.LOST, now)
            self.due_s = self._health.next_probe_s
        return None

    def close(self) -> None:
        """Close the subscription, then its connection."""
        parts = self._pubsub, self._client
        self._pubsub = self._client = None
        self.is_listening = False
        for part in parts:
            with contextlib.suppress(Exception):  # it may be missing, or broken already
                part.close()

    def _receive(self, now: float) -> None:
        while (message := self._pubsub.get_message(timeout=0.0)) is not None:
            self._received_s = now
            if message["type"] == "message":
                self.on_message(message["data"])
            elif message["type"] == "subscribe":
                self.is_listening = True
                self._health.reset(now)
                self.on_subscribed()  # messages published without a subscriber are lost
        if now - self._received_s > SILENCE_LIMIT_S:
            raise TimeoutError(f"nothing received for {SILENCE_LIMIT_S:g} s")
        if now >= self.due_s:
            self.due_s = now + PING_S
            self._pubsub.ping()


def require_redis() -> None:
    """Check that redis is installed; the text of the ImportError says how to install it."""
    try:
        import redis.asyncio  # noqa: F401 - only checks that it is installed
    except ImportError as error:
        raise ImportError(
            f"REDIS_URL needs the package redis: {how_to_install('redis')}", name="redis"
        ) from error


async def _closer(
    entries: dict[int, _ClientEntry], loop: asyncio.AbstractEventLoop, ends: list[AsyncClient]
) -> AsyncGenerator[None]:
    """Close all clients when the loop ends its async generators, or on ``aclose``."""
    try:
        yield
    finally:
        entry = entries.get(id(loop))
        if entry is not None and entry[1] is ends[0]:
            del entries[id(loop)]
        for end in ends:
            with contextlib.suppress(Exception):  # the server may be unreachable
                await end.aclose()


def max_connections(settings: StoreSettings) -> int:
    """Return the most connections of a client: while all calls are in flight, a probe opens as many again."""
    return max(CONNECTIONS, 2 * settings.redis_in_flight)


def _client(
    url: RedisAddress, timeouts: tuple[float, float], connections: int, *, is_async: bool
) -> _ClientAndParts:
    """Create a client, and list the objects to close with it; the timeouts: to connect, and to read."""
    from redis.backoff import NoBackoff

    root = "redis.asyncio" if is_async else "redis"
    library, cluster, retry = map(import_module, (root, f"{root}.cluster", f"{root}.retry"))

    def options(login: RedisLogin) -> dict[str, Any]:
        username, password = login
        return {
            "username": username,
            "password": password,
            "socket_connect_timeout": timeouts[0],
            "socket_timeout": timeouts[1],
            "protocol": PROTOCOL,
            "retry": retry.Retry(NoBackoff(), 0),
            **_tls(url),
        }

    given = options(url.login) | {"max_connections": connections}
    if is_async and url.topology != "cluster":
        # The batch abandons a call by the running time of its loop: these would count a blocked loop, too.
        given |= {"socket_connect_timeout": None, "socket_timeout": None}
    if url.topology == "cluster":
        nodes = [cluster.ClusterNode(host, port) for host, port in url.hosts]
        client = library.RedisCluster(startup_nodes=nodes, **given)
        return client, [client]
    if url.topology == "sentinel":
        manager = library.Sentinel(list(url.hosts), sentinel_kwargs=options(url.sentinel_login))
        primary = _bounded(manager.master_for(url.service, db=url.db, **given), root)
        return primary, [primary, *manager.sentinels]
    place: dict[str, Any] = {"unix_socket_path": url.path}
    if not url.path:
        place = dict(zip(("host", "port"), url.hosts[0], strict=True))
    single = _bounded(library.Redis(db=url.db, **place, **given), root)
    return single, [single]


def _bounded(client: AsyncClient, root: str) -> AsyncClient:
    """Let a client give up an endless reply, which would fill the memory; with hiredis only."""
    base: _Parser = import_module(f"{root}.connection").DefaultParser
    if not hasattr(base, "read_from_socket"):
        return client

    def read_response(parser: _Parser, *args: object, **options: object) -> object:
        parser.reads = 0
        return base.read_response(parser, *args, **options)

    def read_from_socket(parser: _Parser, *args: object, **options: object) -> object:
        parser.reads += 1
        if parser.reads > MOST_READS:
            raise ConnectionError("the reply is too long")
        return base.read_from_socket(parser, *args, **options)

    methods = {"reads": 0, "read_response": read_response, "read_from_socket": read_from_socket}
    client.connection_pool.connection_kwargs["parser_class"] = type("BoundedParser", (base,), methods)
    return client


def _tls(url: RedisAddress) -> dict[str, Any]:
    if not url.tls:
        return {}
    options = dict(url.options)
    if options.get("ssl_cert_reqs") == "none":  # the name of an unchecked certificate cannot be checked
        options.setdefault("ssl_check_hostname", False)
    return {"ssl": True} | options
