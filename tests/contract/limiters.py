"""Two limiters with one face: the script, and one of the naive ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autoglm_throttle.store.protocol import VALUES
from tests.contract.script_store import SECOND, ScriptStore, limit

Sizes = Sequence[tuple[int, int]]
"""Limits: units, and seconds of the window."""


@dataclass(frozen=True)
class Reply:
    allowed: bool
    retry_after_us: int | None = None
    """-1: never; None: the limiter does not say."""


class Limiter(Protocol):
    client: Any

    def hit(self, sizes: Sizes, at_us: float, cost: int = 1, ahead_us: int = 0) -> Reply:
        """A request at an instant of the server, whose sender's clock is ahead by so much."""
        ...

    def hit_many(self, users: Sequence[str], size: tuple[int, int], at_us: float) -> list[Reply]:
        """One request of each user, in one call."""
        ...

    def begin(self, sizes: Sizes, at_us: float) -> None:
        """A request whose sender dies as soon as the first command is sent."""
        ...

    def standing(self) -> list[bytes]:
        """All that stands in the store."""
        ...

    def key(self, user: str, size: tuple[int, int]) -> str:
        """Where the units of a user stand."""
        ...


class Ours:
    """The script of this library."""

    def __init__(self, store: ScriptStore) -> None:
        self.client = store.client
        self._store = store.fresh()
        self._prefix = store.prefix

    def hit(self, sizes: Sizes, at_us: float, cost: int = 1, ahead_us: int = 0) -> Reply:
        answer = self._store.hit(tuple(limit(*size) for size in sizes), int(at_us), cost)
        waits = answer[::VALUES]
        return Reply(not any(waits), -1 if -1 in waits else max(waits))

    def hit_many(self, users: Sequence[str], size: tuple[int, int], at_us: float) -> list[Reply]:
        asks = [self._store.ask((limit(*size),), user=user) for user in users]
        return [Reply(answer[0] == 0, answer[0]) for answer in self._store.call(asks, int(at_us))]

    def begin(self, sizes: Sizes, at_us: float) -> None:
        self.hit(sizes, at_us)

    def standing(self) -> list[bytes]:
        return list(self.client.keys(f"{self._prefix}:*"))

    def key(self, user: str, size: tuple[int, int]) -> str:
        return self._store.ask((limit(*size),), user=user).keys[0]


class Naive:
    """A script that asks one window at a time, by the clock of whoever asks.

    Args:
        per_us: ticks of its clock in a microsecond.
    """

    def __init__(self, store: ScriptStore, script: str, per_us: int = 1) -> None:
        self.client = store.client
        self._prefix = store.fresh().prefix
        self._script = script
        self._sha = hashlib.sha1(script.encode()).hexdigest()
        self._per_us = per_us
        self.client.script_load(script)

    def hit(self, sizes: Sizes, at_us: float, cost: int = 1, ahead_us: int = 0) -> Reply:
        replies = [self._run(["a"], size, at_us + ahead_us, cost) for size in sizes]
        return Reply(all(replies))

    def hit_many(self, users: Sequence[str], size: tuple[int, int], at_us: float) -> list[Reply]:
        return [Reply(bool(reply)) for reply in self._run(users, size, at_us, 1)]

    def begin(self, sizes: Sizes, at_us: float) -> None:
        self._run(["a"], sizes[0], at_us, 1)

    def standing(self) -> list[bytes]:
        return list(self.client.keys(f"{self._prefix}:*"))

    def key(self, user: str, size: tuple[int, int]) -> str:
        return f"{self._prefix}:{size[1]}:{user}"

    def _run(self, users: Sequence[str], size: tuple[int, int], at_us: float, cost: int) -> Any:
        keys = [self.key(user, size) for user in users]
        now = f"{int(at_us) * self._per_us + round((at_us % 1) * self._per_us)}"
        window = size[1] * SECOND * self._per_us
        return self.client.evalsha(self._sha, len(keys), *keys, now, window, size[0], cost)
