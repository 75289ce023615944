"""Counters of a Redis server, before and after a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.store.server import RedisServer

CLOSE_WAIT_S = 1.0
"""Longest time in which a server notices closed connections."""


@dataclass(frozen=True)
class Reading:
    """Counters of a server at one instant; all but the clients only grow."""

    calls: Mapping[str, int]
    """Calls by command, including those of scripts."""
    cpu_s: float
    """User and system time of the process of the server."""
    opened: int
    """Connections accepted so far, without those of the gauge."""
    clients: int
    """Open connections, without that of the gauge."""

    def sent(self, before: Reading, commands: tuple[str, ...]) -> int:
        """Count these commands of clients since an earlier reading."""
        return sum(self.calls.get(name, 0) - before.calls.get(name, 0) for name in commands)


class Gauge:
    """Reads the counters of a server; its own connections are subtracted."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._commands = 0

    def read(self) -> Reading:
        """Read the counters."""
        info: dict[str, str] = {}
        for section in ("commandstats", "cpu", "stats", "clients"):
            info |= self.server.info(section)
            self._commands += 1
        return Reading(
            calls={
                name.removeprefix("cmdstat_"): int(text.partition("calls=")[2].partition(",")[0])
                for name, text in info.items()
                if name.startswith("cmdstat_")
            },
            cpu_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            opened=int(info["total_connections_received"]) - self._commands,
            clients=int(info["connected_clients"]) - 1,
        )

    def used(self) -> int:
        """Return the bytes in use, which include client buffers: keep the number of clients constant."""
        self._commands += 1
        return int(self.server.info("memory")["used_memory"])

    def empty(self) -> None:
        """Delete all keys and wait until closed connections are gone; scripts stay loaded."""
        self.server.command("FLUSHALL", "SYNC")
        self._commands += 1
        until = time.monotonic() + CLOSE_WAIT_S
        while self.read().clients and time.monotonic() < until:
            time.sleep(0.01)
