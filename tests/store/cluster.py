"""A Cluster of three primaries."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from tests.store.polling import until
from tests.store.server import BUS, Binary, RedisServer

SLOTS = 16_384
READY_S = 60.0


class Cluster3:
    """Three servers with a third of the slots each and no replicas: a lost one takes its third with it."""

    def __init__(self, binary: Binary | None = None) -> None:
        more = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self.nodes = [RedisServer(binary, args=more) for _ in range(3)]
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for node in self.nodes:
                opening.enter_context(node)
            self._join()
            self.await_whole()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def url(self) -> str:
        """``redis+cluster://`` address that names all nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def await_whole(self) -> None:
        """Return once the Cluster is whole."""
        until(self.whole, READY_S, "three nodes that know each other and all slots")

    def whole(self) -> bool:
        """Whether every node knows all nodes and finds all slots served."""
        due = {"cluster_state": "ok", "cluster_known_nodes": "3", "cluster_slots_ok": str(SLOTS)}
        return all(due.items() <= _info(node).items() for node in self.nodes)

    def _join(self) -> None:
        for i, node in enumerate(self.nodes):
            slots = range(i * SLOTS // 3, (i + 1) * SLOTS // 3)
            if node.binary.version >= (7, 0, 0):
                node.command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
            else:
                node.command("CLUSTER", "ADDSLOTS", *slots)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        first = self.nodes[0].port
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", first, first + BUS)


def _info(node: RedisServer) -> dict[str, str]:
    lines = str(node.command("CLUSTER", "INFO")).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
