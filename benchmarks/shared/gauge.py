"""What a Redis server says about itself, before and after."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.store.server import RedisServer

LEAVING_S = 1.0
"""As long as a server may need to notice that clients have hung up."""


@dataclass(frozen=True)
class Reading:
    """Counters of a server at one moment; all but the clients only grow."""

    calls: Mapping[str, int]
    """Calls by command, those that scripts make included."""
    cpu_s: float
    """User and system time of the server's process."""
    opened: int
    """Connections ever accepted, without the gauge's own."""
    clients: int
    """Connections open now, without the gauge's own."""

    def sent(self, before: Reading, commands: tuple[str, ...]) -> int:
        """How often since then a client has sent one of these commands."""
        return sum(self.calls.get(name, 0) - before.calls.get(name, 0) for name in commands)


class Gauge:
    """Reads a server on connections of its own, which it counts out."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._asked = 0

    def read(self) -> Reading:
        """The counters now."""
        info: dict[str, str] = {}
        for section in ("commandstats", "cpu", "stats", "clients"):
            info |= self.server.info(section)
            self._asked += 1
        return Reading(
            calls={
                name.removeprefix("cmdstat_"): int(text.partition("calls=")[2].partition(",")[0])
                for name, text in info.items()
                if name.startswith("cmdstat_")
            },
            cpu_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            opened=int(info["total_connections_received"]) - self._asked,
            clients=int(info["connected_clients"]) - 1,
        )

    def used(self) -> int:
        """Bytes in use; the buffers of clients are among them, so change their number as little as can be."""
        self._asked += 1
        return int(self.server.info("memory")["used_memory"])

    def empty(self) -> None:
        """Forget all keys, once those who have hung up are gone; scripts stay known."""
        self.server.command("FLUSHALL", "SYNC")
        self._asked += 1
        until = time.monotonic() + LEAVING_S
        while self.read().clients and time.monotonic() < until:
            time.sleep(0.01)
