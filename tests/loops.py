"""The event loops that servers run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

BACKENDS = ("asyncio", "trio")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The one and the other."""
    return str(request.param)


def run(backend: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a task to its end in a loop of that kind."""
    anyio.run(task, backend=backend)
