"""Calls of the single-flight tests that end when the test releases them."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

FOR_S = 60.0


async def settle(passes: int = 5) -> None:
    """Let the other tasks go as far as they can."""
    for _ in range(passes):
        await checkpoint()


class Calls:
    """A call that ends when it is let go, and counts how many of it are under way."""

    def __init__(self) -> None:
        self.made = 0
        self.at_once = 0
        self.most = 0
        self.go = anyio.Event()

    async def __call__(self) -> int:
        self.made += 1
        mine = self.made
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
            return mine
        finally:
            self.at_once -= 1
