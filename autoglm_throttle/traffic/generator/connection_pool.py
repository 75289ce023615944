"""Connection pool of a run, opened before it starts; the most recently used connection comes first."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator.connection import Connection
from autoglm_throttle.traffic.generator.target import TargetUrl

BACKOFF_FIRST_S = 0.010
BACKOFF_MAX_S = 1.0  # Between two connection attempts: a restarted server is reconnected within a second

# Without a connection before a target counts as unreachable: a shorter restart loses no request.
GRACE_S = 1.0

CONNECT_S = 10.0  # Timeout of a connection attempt

# Error reasons of OpenSSL, by its version, for a response that is not TLS, such as plain HTTP.
NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))

MAX_CONNECTING = 256  # Connections opened at the same time
RESERVED_FILES = 64  # Files reserved for the process besides the connections

# Where there is no hard limit, macOS still allows a process no more than 10 240 (its OPEN_MAX).
MAX_WITHOUT_LIMIT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Client options: connections, timeouts and limits. A number not above 0 raises TrafficError."""

    # Opened before the start, so that no latency includes connecting. A closed loop has one per user.
    connections: int = 256
    # Opened while all others are busy; with 0, requests wait, and their latency includes the wait.
    more_connections: int = 0
    max_inflight: int = 20_000  # Above it a request is dropped and counted, never delayed (the rule of k6)
    timeout_s: float = 30.0  # From the intended start to the last byte of the response
    drain_s: float = 30.0  # Longest wait for responses after the last request was sent

    def __post_init__(self) -> None:
        if self.more_connections < 0:
            raise TrafficError("more_connections must not be negative")
        if not min(self.connections, self.max_inflight, self.timeout_s, self.drain_s) > 0:
            raise TrafficError("connections, max_inflight, timeout_s and drain_s must be above 0")


class ConnectionPool:
    """Opens and lends connections, all to the first address of a target that accepts one."""

    def __init__(self, target: TargetUrl, options: ClientOptions, make: Callable[[], Connection]) -> None:
        self._target = target
        self._count = options.connections
        self._most = options.connections + options.more_connections
        allow_connections(self._most)
        self._make = make
        self._tls = target.tls_context()
        self.address: str = target.host  # Address in use; the name of the host before the first connection
        self._idle: dict[Connection, None] = {}
        self.open: set[Connection] = set()  # Connections that are established, idle or not
        self.opening: set[asyncio.Task[None]] = set()  # Tasks that establish connections
        self._is_closed = False
        self._failing_since_s = math.inf
        self.unreachable: bool = False  # No connection is open, and all attempts failed for `GRACE_S`

    async def fill(self) -> None:
        """Open the initial connections; raise TrafficError if one of them cannot be opened."""
        try:
            for name in (self._target.host, self._target.tls.server_name or ""):
                name.encode("idna")  # as all below does, which keeps an open socket when that fails
            async with asyncio.timeout(CONNECT_S):
                await self._connect_first()
                # More at a time than the backlog of a server would be delayed by a second.
                for left in range(self._count - 1, 0, -MAX_CONNECTING):
                    await asyncio.gather(*(self.connect() for _ in range(min(left, MAX_CONNECTING))))
        except (OSError, UnicodeError) as problem:
            self.close()
            raise TrafficError(self._describe_error(problem)) from problem

    def acquire(self) -> Connection | None:
        """Return the most recently used idle connection; None if there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.reusable:
                return connection
        return None

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool."""
        self._idle[connection] = None

    def open_more(self, waiting: int) -> None:
        """Open connections for ``waiting`` requests, up to the maximum."""
        capacity = self._most - len(self.open) - len(self.opening)
        for _ in range(min(capacity, waiting - len(self.opening))):
            task = asyncio.get_running_loop().create_task(self._reconnect())
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)

    def opened(self, connection: Connection) -> None:
        """Register an established connection; abort it if the pool was closed meanwhile."""
        self.open.add(connection)
        self._failing_since_s, self.unreachable = math.inf, False
        if self._is_closed:
            connection.abort()

    def closed(self, connection: Connection) -> None:
        """Remove a lost connection."""
        self.open.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Abort all connections, open or connecting."""
        self._is_closed = True
        for task in self.opening:
            task.cancel()
        for connection in list(self.open):
            connection.abort()
        self._idle.clear()

    def failed(self, now: float) -> None:
        """Register a failed attempt to connect."""
        if not self.open:
            self._failing_since_s = min(now, self._failing_since_s)
            self.unreachable = now - self._failing_since_s >= GRACE_S

    async def _connect_first(self) -> None:
        loop, target = asyncio.get_running_loop(), self._target
        address_infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        *others, last = dict.fromkeys(str(info[4][0]) for info in address_infos)
        for self.address in others:
            with contextlib.suppress(OSError):
                return await self.connect()
        self.address = last
        return await self.connect()

    async def connect(self) -> None:
        """Open a connection to the address in use; raise OSError if it is not accepted."""
        name = None if self._tls is None else self._target.tls.server_name or self._target.host
        await asyncio.get_running_loop().create_connection(
            self._make, self.address, self._target.port, ssl=self._tls, server_hostname=name
        )

    async def _reconnect(self) -> None:
        pause_s = BACKOFF_FIRST_S
        while not self._is_closed:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self.connect()
            except OSError:
                self.failed(monotonic())
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, BACKOFF_MAX_S)
            else:
                return

    def _describe_error(self, problem: OSError | UnicodeError) -> str:
        where = f"{self._target.host}:{self._target.port}"
        if isinstance(problem, UnicodeError):
            named = " as ".join(filter(None, (self._target.host, self._target.tls.server_name)))
            return f"{named} cannot be the name of a host: {problem}"
        if isinstance(problem, ssl.SSLCertVerificationError):
            return f"the certificate of {where} is not trusted: {problem.verify_message}"
        if isinstance(problem, ssl.SSLError) and problem.reason in NO_TLS:
            return f"{where} does not use TLS; is it http:// instead of https://?"
        if isinstance(problem, socket.gaierror):
            return f"{self._target.host} is not known: {problem.strerror}"
        if isinstance(problem, TimeoutError):
            return f"{where} did not take {self._count} connections within {CONNECT_S:g} s"
        return f"{where} refuses connections: {problem}"


def max_connections() -> int:
    """Return the connections this process could open with its soft limit raised to the hard one."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WITHOUT_LIMIT if hard == resource.RLIM_INFINITY else max(0, hard - RESERVED_FILES)


def allow_connections(count: int) -> None:
    """Raise the soft limit on open files for so many connections, or TrafficError above the hard limit."""
    import resource

    needed = count + RESERVED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError, OverflowError):
        raise TrafficError(f"{needed} open files are needed and {soft} allowed: ulimit -n {needed}") from None
