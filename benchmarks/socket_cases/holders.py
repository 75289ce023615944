"""Idle holders: streams without events, bodies that never come, downloads that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.socket_cases.wire import Answer, Client, steady
from tests.servers.server import Server

RATE_RPS = 20.0
BEFORE_S = 1.0
"""Seconds of plain requests before the first holder comes."""

RETRY_S = 1.0
"""Seconds until a rejected holder tries again where the answer names no time."""


@dataclass
class Holders:
    """Holders of a case, and their answers."""

    clients: list[Client] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def count(self, status: int) -> int:
        """Return how many answers had a status."""
        return self.statuses.count(status)

    def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.close()


@dataclass(frozen=True)
class Held:
    """Result of a case.

    Args:
        others: answers to the plain requests of other users.
        statuses: answers to the holders.
        state: the state of the throttle at the end, while the holders are connected.
    """

    others: list[Answer]
    statuses: dict[int, int]
    state: dict[str, Any]

    def shares(self) -> list[float]:
        """Return the share of the others that was served, by second from the first holder on."""
        rows: dict[int, list[bool]] = {}
        for answer in self.others:
            if answer.at_s >= BEFORE_S:
                rows.setdefault(int(answer.at_s - BEFORE_S), []).append(answer.status == 200)
        return [sum(row) / len(row) for _, row in sorted(rows.items())]

    def share_from(self, second: int) -> float:
        """Return the share that was served from a second after the first holder on."""
        later = [answer.status == 200 for answer in self.others if answer.at_s >= BEFORE_S + second]
        return sum(later) / len(later)


async def feed(held: Holders, port: int, number: int) -> None:
    """Open an event stream, and try again as told while it is rejected."""
    while True:
        client = Client(port, f"127.0.2.{1 + number}")
        held.clients.append(client)
        await client.send("GET", "/feed", "accept: text/event-stream")
        status, retry_after_s = await client.head()
        held.statuses.append(status)
        if status == 200:
            return
        client.close()
        await asyncio.sleep(retry_after_s or RETRY_S)


async def head_only(held: Holders, port: int, number: int) -> None:
    """Send the head of a request whose body never comes, and wait for an answer."""
    client = Client(port, f"127.0.3.{1 + number}")
    held.clients.append(client)
    await client.send("POST", "/upload", "content-length: 1000")
    status, _ = await client.head()
    held.statuses.append(status)


async def unread(held: Holders, port: int, _number: int) -> None:
    """Ask for a large body and read nothing; a rejected one tries again."""
    while True:
        client = Client(port, "127.0.4.1", window=4096)
        held.clients.append(client)
        await client.send("GET", "/download")
        status, retry_after_s = await client.head()
        held.statuses.append(status)
        if status == 200:
            return
        client.close()
        await asyncio.sleep(retry_after_s or RETRY_S)


@dataclass(frozen=True)
class HolderCase:
    """A kind of idle holder and its number."""

    hold: Callable[[Holders, int, int], Coroutine[Any, Any, None]]
    number: int


CASES = {
    "event streams": HolderCase(feed, 100),
    "heads without body": HolderCase(head_only, 64),
    "unread downloads": HolderCase(unread, 70),
}


async def run(server: Server, case: HolderCase, seconds: float) -> Held:
    """Send plain requests, let the holders come after a second, and observe for ``seconds``."""
    held = Holders()
    others = asyncio.create_task(steady(server.port, RATE_RPS, BEFORE_S + seconds))
    await asyncio.sleep(BEFORE_S)
    tasks = [asyncio.create_task(case.hold(held, server.port, number)) for number in range(case.number)]
    answers = await others
    state = await asyncio.to_thread(server.state)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    held.close()
    statuses = {status: held.count(status) for status in sorted(set(held.statuses))}
    return Held(answers, statuses, state)
