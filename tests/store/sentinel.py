"""A primary, its replica and the Sentinel that watches them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from tests.store.polling import until
from tests.store.server import Binary, RedisServer

NAME = "mymaster"
READY_S = 60.0
WATCH = f"""
sentinel monitor {NAME} 127.0.0.1 {{port}} 1
sentinel down-after-milliseconds {NAME} 500
sentinel failover-timeout {NAME} 2000
"""


class SentinelPair:
    """A server, its copy, and a Sentinel that promotes the copy half a second after the server's end."""

    def __init__(self, binary: Binary | None = None) -> None:
        self._binary = binary
        # A first sync otherwise waits 5 s for more replicas.
        self.primary = RedisServer(binary, args=("--repl-diskless-sync-delay", "0"))
        self.replica = RedisServer(binary)
        self.sentinel = RedisServer(binary)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            opening.enter_context(self.primary)
            opening.enter_context(self.replica)
            self.replica.command("REPLICAOF", "127.0.0.1", self.primary.port)
            until(self._linked, READY_S, "a replica that is linked")
            watch = WATCH.format(port=self.primary.port)
            self.sentinel = RedisServer(self._binary, args=("--sentinel",), config=watch)
            opening.enter_context(self.sentinel)
            until(self.knows_replica, READY_S, "a Sentinel that knows the replica")
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """``redis+sentinel://`` address."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{NAME}"

    def primary_port(self) -> int:
        """Port of what the Sentinel calls the primary now."""
        return int(self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def failed_over(self) -> bool:
        """Whether the former replica is the primary, for the Sentinel and for itself."""
        named = self.primary_port() == self.replica.port
        return named and self.replica.info("replication")["role"] == "master"

    def knows_replica(self) -> bool:
        """Whether the Sentinel could promote the replica now."""
        rows = self.sentinel.command("SENTINEL", "REPLICAS", NAME)
        seen = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return [row["flags"] for row in seen if row["master-link-status"] == "ok"] == ["slave"]

    def _linked(self) -> bool:
        return self.replica.info("replication")["master_link_status"] == "up"
