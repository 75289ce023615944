"""The connections of a run: opened before it starts, the most recently used one first.

The most recently used connection is the least likely to have been closed by the server meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.files import allow_connections
from autoglm_throttle.traffic.generator.connection import Connection

BACKOFF_FIRST_S = 0.010
BACKOFF_MAX_S = 1.0
"""Between two attempts to connect: a restarting server is found again within a second."""

CONNECT_S = 10.0
"""A connection that takes longer than this to open counts as refused."""


class Pool:
    """Opens, keeps and hands out connections.

    Args:
        host: name or address.
        port: TCP port.
        size: connections to open before the start.
        more: connections to open later, while all others are busy.
        make: a new connection object; it tells its owner when it is open.

    Raises:
        TrafficError: the process may not open that many files.
    """

    def __init__(self, host: str, port: int, size: int, more: int, make: Callable[[], Connection]) -> None:
        allow_connections(size + more)
        self._host = host
        self._port = port
        self._size = size
        self._most = size + more
        self._make = make
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._shut = False

    async def fill(self) -> None:
        """Open all connections at once.

        Raises:
            TrafficError: one of them cannot be opened.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.gather(*(self._connect() for _ in range(self._size)))
        except OSError as problem:
            self.shut()
            raise TrafficError(f"{self._host}:{self._port} refuses connections: {problem}") from problem

    def take(self) -> Connection | None:
        """An idle connection, the most recently used one; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    def give_back(self, connection: Connection) -> None:
        """It is idle again."""
        self._idle.append(connection)

    def want(self, waiting: int) -> None:
        """So many requests wait for a connection: open that many more if it may."""
        room = self._most - len(self._open) - len(self._opening)
        for _ in range(min(room, waiting - len(self._opening))):
            task = asyncio.get_running_loop().create_task(self._reconnect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def opened(self, connection: Connection) -> None:
        """It connected; too late if the pool is shut."""
        self._open.add(connection)
        if self._shut:
            connection.abort()

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def shut(self) -> None:
        """Drop everything, open or opening."""
        self._shut = True
        for task in self._opening:
            task.cancel()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(self._make, self._host, self._port)

    async def _reconnect(self) -> None:
        pause_s = BACKOFF_FIRST_S
        while not self._shut:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._connect()
            except OSError:
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, BACKOFF_MAX_S)
            else:
                return
