"""Startup and shutdown of an ASGI application, as by a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message

from autoglm_throttle.traffic.errors import TrafficError


class Lifespan:
    """Runs the lifespan of an application; one without lifespan support is served without it.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._said: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}
        """Lifespan state of the application."""

    async def start(self) -> None:
        """Start the application.

        Raises:
            TrafficError: it reports that it cannot start.
        """
        self._task = asyncio.get_running_loop().create_task(self._live(), name="lifespan")
        self._inbox.put_nowait({"type": "lifespan.startup"})
        said = await self._said.get()
        if said is None:
            self._task = None
        elif said["type"] == "lifespan.startup.failed":
            raise TrafficError(f"the application did not start: {said.get('message', '')}")

    async def stop(self) -> None:
        """Shut the application down.

        Raises:
            TrafficError: it reports that it cannot shut down.
        """
        if self._task is None:
            return
        self._inbox.put_nowait({"type": "lifespan.shutdown"})
        said = await self._said.get()
        if said is not None and said["type"] == "lifespan.shutdown.failed":
            raise TrafficError(f"the application did not shut down: {said.get('message', '')}")
        await self._task

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        with suppress(Exception):  # the specification's way to say that there is no lifespan
            await self._app(scope, self._inbox.get, self._said.put)
        self._said.put_nowait(None)
