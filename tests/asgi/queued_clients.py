"""Clients of a service with few slots: they send, leave and record their responses."""

from __future__ import annotations

from typing import Any

import anyio

from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Priority
from tests.asgi.run_app import Answer, App, Message, Scope, http_scope

ROOMY: dict[str, Any] = {
    "policy": "concurrency",
    "slo_s": 40.0,
    "wait_budget": 1.0,
    "user_limit": "100/minute",
}
"""Nobody waits in vain; the clock of the tests stands still."""

FULL_HIGH, FULL_MID = 1000.0, 500.0
"""What the buckets hold at the start."""

REQUEST: Message = {"type": "http.request", "body": b"", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = True) -> Message:
    """One of the messages of a body."""
    return {"type": "http.request", "body": body, "more_body": more}


async def settled(steps: int = 30) -> None:
    """Let everything go on that can: more steps of the loop than any chain of wakes here has."""
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()


def with_places(places: int, **settings: Any) -> ManualThrottle:
    """A throttle that lets so many in, and lets as many wait."""
    few = {"inflight_start": places, "inflight_floor": 1, "inflight_max": places}
    return throttle_for_tests(**{**ROOMY, **few, **settings})


def taken(throttle: ManualThrottle) -> tuple[int, int, int]:
    """Slots taken, tickets queued, requests active."""
    snapshot = throttle.snapshot()
    gate = snapshot.concurrency
    assert gate is not None
    return gate.in_flight, sum(gate.waiting), sum(snapshot.active.values())


def left_in_line(throttle: ManualThrottle) -> int:
    return throttle.snapshot().oddities.get("disconnected_in_queue", 0)


def used(throttle: ManualThrottle, priority: Priority = Priority.MID) -> float:
    """Tokens that were taken and not given back."""
    full = (FULL_HIGH, FULL_MID, 100.0)[priority]
    return full - throttle.snapshot().tokens[priority]


class Client:
    """One connection: its messages reach the service in order, and its responses are recorded."""

    def __init__(self, app: App, scope: Scope | None = None, *messages: Message) -> None:
        self.answer = Answer()
        self.scope = scope if scope is not None else http_scope()
        self.ended = anyio.Event()
        self.error: BaseException | None = None
        self._app = app
        self._incoming: list[Message] = list(messages)
        self._news = anyio.Event()
        self._gone = False

    def sends(self, *messages: Message) -> None:
        self._incoming.extend(messages)
        self._news.set()

    def leaves(self) -> None:
        self._gone = True
        self._news.set()

    async def run(self) -> None:
        """Until the service has done with it."""
        try:
            await self._app(self.scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.ended.set()

    async def _receive(self) -> Message:
        while not self._incoming and not self._gone:
            self._news = anyio.Event()
            await self._news.wait()
        await anyio.lowlevel.checkpoint()
        if self._incoming:
            return self._incoming.pop(0)
        return {"type": f"{self.scope['type']}.disconnect", "code": 1001}

    async def _send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.answer.messages.append(message)


class Service:
    """An app whose requests stay inside until they are released, and that counts them.

    Args:
        throttle: what stands before it.
    """

    def __init__(self, throttle: ManualThrottle) -> None:
        self.throttle = throttle
        self.inside: list[Scope] = []
        self.calls = 0
        self.held: list[anyio.Event] = []
        self.app: App = ThrottleMiddleware(self._serve, throttle=throttle)

    async def _serve(self, scope: Scope, receive: Any, send: Any) -> None:
        self.calls += 1
        release = anyio.Event()
        self.held.append(release)
        self.inside.append(scope)
        try:
            await release.wait()
        finally:
            self.inside.remove(scope)
        body = b""
        while (message := await receive()) and message["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def release(self) -> None:
        """Let the one go on that came first."""
        self.held.pop(0).set()

    def client(self, *messages: Message, priority: str = "mid", **more: Any) -> Client:
        headers = {"x-priority": priority}
        return Client(self.app, http_scope(headers=headers, **more), *(messages or (REQUEST,)))
