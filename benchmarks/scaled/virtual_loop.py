"""An event loop in virtual time: a wait takes none, and the clock jumps to its end."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _VirtualSelector(selectors.DefaultSelector):
    """Selector whose waits move a clock instead of lasting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Move the clock to the end of the wait.

        Raises:
            RuntimeError: nothing is scheduled, so that the wait would have no end.
        """
        if timeout is None:
            raise RuntimeError("all tasks wait, and nothing is scheduled")
        self.now += max(0.0, timeout)
        return list(super().select(0))


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop on such a clock, which begins at 0 s."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return float(self._virtual.now)
