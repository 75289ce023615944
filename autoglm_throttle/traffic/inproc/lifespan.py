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
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.state: dict[str, Any] = {}
        """Lifespan state of the application."""

    async def start(self) -> None:
        """Start the application.

        Raises:
            TrafficError: it reports that it cannot start.
        """
        self._task = asyncio.get_running_loop().create_task(self._run_app(), name="lifespan")
        self._to_app.put_nowait({"type": "lifespan.startup"})
        message = await self._from_app.get()
        if message is None:
            self._task = None
        elif message["type"] == "lifespan.startup.failed":
            raise TrafficError(f"the application did not start: {message.get('message', '')}")

    async def stop(self) -> None:
        """Shut the application down.

        Raises:
            TrafficError: it reports that it cannot shut down.
        """
        if self._task is None:
            return
        self._to_app.put_nowait({"type": "lifespan.shutdown"})
        message = await self._from_app.get()
        if message is not None and message["type"] == "lifespan.shutdown.failed":
            raise TrafficError(f"the application did not shut down: {message.get('message', '')}")
        await self._task

    async def _run_app(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        with suppress(Exception):  # the specification's way to say that there is no lifespan
            await self._app(scope, self._to_app.get, self._from_app.put)
        self._from_app.put_nowait(None)
