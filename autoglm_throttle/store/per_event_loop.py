"""Parts of a store for each event loop: a connection belongs to the loop it was made in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from autoglm_throttle.store.user_limit_store import StoreStats


class LoopPart(Protocol):
    """The part of a store in one loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        ...

    def stats(self) -> StoreStats:
        """Return its counters."""
        ...


P = TypeVar("P", bound=LoopPart)


class PerEventLoop(Generic[P]):
    """The parts of all loops, each made at its first use.

    Args:
        make: makes the part of the running loop.
    """

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], P]) -> None:
        self._make = make
        self._parts: dict[int, P] = {}
        self._closed_stats = StoreStats()

    def __len__(self) -> int:
        return len(self._parts)

    def current(self) -> P | None:
        """Return the part of the running loop; None if it is no asyncio loop, or none runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return self._parts.get(id(loop)) or self._new(loop)

    def all(self) -> list[P]:
        """Return the parts of all loops; from any thread."""
        return list(self._parts.values())

    def stats(self) -> StoreStats:
        """Return the counters of all loops together, closed ones included."""
        total = self._closed_stats
        for part in self.all():
            total += part.stats()
        return total

    def _new(self, loop: asyncio.AbstractEventLoop) -> P:
        # A copy: another thread may add its loop's part meanwhile.
        for key, other in list(self._parts.items()):
            if other.loop.is_closed() and self._parts.pop(key, None) is not None:
                self._closed_stats += replace(other.stats(), waiting=0)
        part = self._parts[id(loop)] = self._make(loop)
        return part
