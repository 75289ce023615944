"""What a store keeps for each event loop: a connection belongs to the loop it was made in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from autoglm_throttle.limiting.shared.store import Health

_not_ours: list[object] = []
"""Parts of a parent process, kept so that nothing of theirs is ended here."""


class Part(Protocol):
    """One loop's part of a store."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        ...

    def health(self) -> Health:
        """Its counters."""
        ...


P = TypeVar("P", bound=Part)


class PerLoop(Generic[P]):
    """The parts of all loops, each made where it is first wanted.

    Args:
        make: makes the part of the running loop.
    """

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], P]) -> None:
        self._make = make
        self._parts: dict[int, P] = {}
        self._gone = Health()

    def __len__(self) -> int:
        return len(self._parts)

    def here(self) -> P | None:
        """The part of the running loop; None if it is no asyncio loop, or none runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return self._parts.get(id(loop)) or self._new(loop)

    def all(self) -> list[P]:
        """The parts of all loops, from any thread."""
        return list(self._parts.values())

    def forget(self) -> None:
        """In a forked process: the parent's loops are not ours."""
        _not_ours.append(self._parts)
        self._parts = {}
        self._gone = Health()

    def health(self) -> Health:
        """The counters of all loops together, of those that are closed, too."""
        total = self._gone
        for part in self.all():
            total += part.health()
        return total

    def _new(self, loop: asyncio.AbstractEventLoop) -> P:
        for key, other in list(self._parts.items()):
            if other.loop.is_closed() and self._parts.pop(key, None) is not None:
                self._gone += replace(other.health(), waiting=0)
        part = self._parts[id(loop)] = self._make(loop)
        return part
