"""A Redis server in virtual time, behind the interface that redis-py has for the package.

One thread works through the calls in the order of their arrival. A call costs a fixed time and a time for
each check in it. The windows are exact logs, as those of the script for limits up to 1000 units.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

TRIP_S: Final = 0.0001  # half of a round trip in a data centre
EPOCH_US: Final = 1_800_000_000_000_000
TAGS: Final = 16


@dataclass(frozen=True)
class Cost:
    """Time of the server's thread for one call, and for each check in it, seconds."""

    call_s: float
    check_s: float


@dataclass(eq=False)
class Node:
    """One server: its windows, and the time until which it is busy."""

    cost: Cost
    calls: int = 0
    checks: int = 0
    busy_s: float = 0.0  # time spent on calls
    free_s: float = 0.0  # when the call that came last is done
    windows: dict[bytes, deque[int]] = field(default_factory=lambda: defaultdict(deque))

    async def call(self, keys: Sequence[bytes], arguments: Sequence[bytes]) -> list[int]:
        """Wait for a turn and for the network; return the reply of the script."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(TRIP_S)
        service_s = self.cost.call_s + self.cost.check_s * len(keys)
        self.free_s = max(loop.time(), self.free_s) + service_s
        self.busy_s += service_s
        self.calls += 1
        self.checks += len(keys)
        reply = self._decide(keys, arguments, EPOCH_US + round(self.free_s * 1e6))
        await asyncio.sleep(self.free_s - loop.time() + TRIP_S)
        return reply

    def _decide(self, keys: Sequence[bytes], arguments: Sequence[bytes], clock_us: int) -> list[int]:
        if len(arguments) != 4 or arguments[1] != b"l":
            raise ValueError(f"no call of one limit up to 1000 units: {arguments!r:.80}")
        limit, window_us = int(arguments[2]), int(arguments[3])
        reply = [clock_us]
        for key in keys:
            stamps = self.windows[key]
            while stamps and stamps[0] <= clock_us - window_us:
                stamps.popleft()
            oldest_us = stamps[0] if stamps else clock_us
            reset_us = oldest_us + window_us - clock_us
            admits = len(stamps) < limit
            if admits:
                stamps.append(clock_us)
            reply += (0 if admits else reset_us, limit - len(stamps), reset_us, clock_us)
        return reply


class Client:
    """The part of redis-py's asyncio clients that the package uses, of one server or of a cluster."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.is_cut = False
        """Whether the network swallows everything that it sends."""
        self.connection_pool = self

    async def get_connection(self) -> Connection:
        """Return a new connection."""
        await self.ensure_reached()
        return Connection(self)

    async def ensure_connection(self, connection: Connection) -> None:
        """Do nothing: connections stay open."""

    async def ensure_reached(self) -> None:
        """Wait without end while the network is cut."""
        if self.is_cut:
            await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def initialize(self) -> None:
        """Read the nodes of the cluster."""
        await self.ensure_reached()

    def node_of(self, key: bytes) -> Node:
        """Return the server of a key: the tags in braces are spread as evenly as they can be."""
        tag = int(key[key.index(b"{") + 1 : key.index(b"}")])
        return self.nodes[tag * len(self.nodes) // TAGS]

    def get_node_from_key(self, key: str) -> Any:
        """Return a node with its name."""
        return NamedNode(str(self.nodes.index(self.node_of(key.encode()))))

    def pipeline(self) -> Pipeline:
        """Return a pipeline."""
        return Pipeline(self)


@dataclass(frozen=True)
class NamedNode:
    """A node as redis-py shows it."""

    name: str


class Connection:
    """A connection that has one call in flight."""

    def __init__(self, client: Client) -> None:
        self.socket_timeout: float | None = None
        self._client = client
        self._reader = hiredis.Reader()

    async def send_packed_command(self, packed: bytes) -> None:
        """Send a call."""
        self._reader.feed(packed)

    async def read_response(self) -> list[int]:
        """Return the reply to the call."""
        command: list[bytes] = self._reader.gets()
        await self._client.ensure_reached()
        count = int(command[2])
        keys = command[3 : 3 + count]
        return await self._client.nodes[0].call(keys, command[3 + count :])

    async def disconnect(self, *, nowait: bool = False) -> None:
        """Do nothing."""


class Pipeline:
    """Calls to one node of a cluster, sent together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._calls: list[tuple[list[bytes], list[bytes]]] = []

    def execute_command(self, _command: str, _script: str, count: int, *values: str | int) -> None:
        """Add a call."""
        texts = [str(value).encode() for value in values]
        self._calls.append((texts[:count], texts[count:]))

    async def execute(self, *, raise_on_error: bool) -> list[Any]:  # noqa: ARG002 - redis-py's
        """Return the replies of all calls."""
        await self._client.ensure_reached()
        return await asyncio.gather(
            *(self._client.node_of(keys[0]).call(keys, rest) for keys, rest in self._calls)
        )


def user_text(number: int) -> str:
    """Return an identity of 16 hex digits for a user's number."""
    return f"{zlib.crc32(str(number).encode()):08x}{number:08x}"
