"""Apps that do one step at a time as the test tells them, and clients that read or send slowly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle
from tests.asgi.queued_clients import Client, settled, taken, with_places
from tests.asgi.run_app import Message, Scope, http_scope

EVENT_STREAM = [(b"content-type", b"text/event-stream")]


def head(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    """The start of a response."""
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def chunk(body: bytes = b"data: x\n\n", *, more: bool = True) -> Message:
    """One part of a response."""
    return {"type": "http.response.body", "body": body, "more_body": more}


class Stage:
    """One request whose app acts as told, and the throttle before it.

    Args:
        scene: what it belongs to.
        scope: of the request.
        messages: what the client has sent already.
    """

    def __init__(self, scene: Scene, scope: Scope, *messages: Message) -> None:
        self._orders: list[Callable[..., Any]] = []
        self._told = anyio.Event()
        self._is_over = False
        self.received: list[Message] = []
        self.errors: list[BaseException] = []
        self.is_inside = False
        self.scope = scope
        scope["test.stage"] = self
        self.client = SlowClient(scene.app, scope, *messages)

    async def serve(self, receive: Any, send: Any) -> None:
        self.is_inside = True
        try:
            while self._orders or not self._is_over:
                if self._orders:
                    await self._orders.pop(0)(receive, send)
                else:
                    self._told = anyio.Event()
                    await self._told.wait()
        except OSError as error:
            self.errors.append(error)
            raise
        finally:
            self.is_inside = False

    def sends(self, *messages: Message) -> None:
        async def order(_receive: Any, send: Any) -> None:
            for message in messages:
                await send(message)

        self._orders.append(order)
        self._told.set()

    def receives(self) -> None:
        async def order(receive: Any, _send: Any) -> None:
            self.received.append(await receive())

        self._orders.append(order)
        self._told.set()

    def ends(self) -> None:
        self._is_over = True
        self._told.set()


class SlowClient(Client):
    """A client that may stop reading."""

    def __init__(self, app: Any, scope: Scope, *messages: Message) -> None:
        super().__init__(app, scope, *messages)
        self._reads = anyio.Event()
        self._reads.set()

    def stops_reading(self) -> None:
        self._reads = anyio.Event()

    def reads(self) -> None:
        self._reads.set()

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        await super()._send(message)


class Scene:
    """A throttle with few slots, its middleware, and requests in it."""

    def __init__(self, group: Any, places: int = 2, **settings: Any) -> None:
        self.throttle: ManualThrottle = with_places(places, **settings)
        self.middleware = ThrottleMiddleware(self._serve, throttle=self.throttle)
        self.app: Any = self.middleware
        self._group = group

    async def _serve(self, scope: Scope, receive: Any, send: Any) -> None:
        await scope["test.stage"].serve(receive, send)

    async def comes(self, *messages: Message, scope: Scope | None = None, **more: Any) -> Stage:
        """Let a request come, and everything happen that can."""
        stage = Stage(self, http_scope(**more) if scope is None else scope, *messages)
        self._group.start_soon(stage.client.run)
        await settled()
        return stage

    async def passes(self, seconds: float, steps: int = 1) -> None:
        """Let time pass; the watch looks after each step."""
        for _ in range(steps):
            self.throttle.clock.advance(seconds / steps)
            self.middleware.slot_watch.scan(self.throttle.clock())
            await settled()

    @property
    def in_flight(self) -> int:
        return taken(self.throttle)[0]

    @property
    def paused(self) -> int:
        view = self.throttle.snapshot().concurrency
        assert view is not None
        return view.paused

    def oddities(self, name: str) -> int:
        return self.throttle.snapshot().oddities.get(name, 0)
