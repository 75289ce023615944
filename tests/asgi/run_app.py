"""Drives an ASGI app directly: no server, no client library, no socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

Scope = dict[str, Any]
Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

CLIENT = ("203.0.113.7", 50_000)


async def never(scope: Scope, receive: object, send: object) -> None:
    """An app that no request may reach."""
    raise AssertionError(f"reached by {scope}")


async def silent() -> Message:
    """The ``receive`` of a connection on which no message may be awaited."""
    raise AssertionError("a message is waited for")


@dataclass
class Answer:
    """The messages that an app sent."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The HTTP status, also that of a websocket denial; 101 after an accept, 0 if there is none."""
        for message in self.messages:
            if message["type"].endswith("response.start"):
                return int(message["status"])
            if message["type"] == "websocket.accept":
                return 101
        return 0

    @property
    def close_code(self) -> int | None:
        """The code of the first ``websocket.close``."""
        codes = [m.get("code", 1000) for m in self.messages if m["type"] == "websocket.close"]
        return codes[0] if codes else None

    @property
    def body(self) -> bytes:
        """All body bytes."""
        return b"".join(m.get("body", b"") for m in self.messages if m["type"].endswith("response.body"))

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields in order."""
        starts = [m for m in self.messages if "headers" in m]
        return [(bytes(name), bytes(value)) for name, value in starts[0]["headers"]] if starts else []

    def header(self, name: str) -> str | None:
        """The only value of a header field; None if there is none."""
        values = [value for key, value in self.fields if key == name.encode()]
        assert len(values) < 2, f"{name} is listed twice: {values}"
        return values[0].decode("latin-1") if values else None


def http_scope(
    path: str = "/",
    method: str = "GET",
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]] = (),
    **more: Any,
) -> Scope:
    """A scope as a server makes it."""
    pairs = (
        [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        if isinstance(headers, Mapping)
        else list(headers)
    )
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "headers": pairs,
        "client": CLIENT,
        "server": ("testserver", 80),
        **more,
    }


def websocket_scope(path: str = "/", *, denial: bool = False, **more: Any) -> Scope:
    """A handshake; ``denial`` says that the server can send an HTTP answer instead of an accept."""
    scope = http_scope(path, **more)
    del scope["method"]
    extensions: dict[str, Any] = {"websocket.http.response": {}} if denial else {}
    return {**scope, "type": "websocket", "scheme": "ws", "subprotocols": [], "extensions": extensions}


async def send_scope(app: App, scope: Scope, incoming: Iterable[Message] = ()) -> Answer:
    """Run an app on a scope; the client leaves after ``incoming``, and not before it has its answer."""
    answer = Answer()
    waiting = list(incoming)
    answered = anyio.Event()
    if scope.get("type") != "http":
        answered.set()
    gone = {"type": f"{scope.get('type', 'http')}.disconnect", "code": 1001}

    async def receive() -> Message:
        await anyio.lowlevel.checkpoint()
        if not waiting:
            await answered.wait()
        return waiting.pop(0) if waiting else gone

    async def send(message: Message) -> None:
        answer.messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            answered.set()

    await app(scope, receive, send)
    return answer


def at_once(app: App, scope: Scope) -> Answer:
    """Run an app that never waits, without an event loop: for tests of many thousand requests."""
    answer = Answer()

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        answer.messages.append(message)

    coroutine = app(scope, receive, send).__await__()
    try:
        next(coroutine)
    except StopIteration:
        return answer
    raise AssertionError("the app waits")


async def request(app: App, path: str = "/", method: str = "GET", **more: Any) -> Answer:
    """One HTTP request without a body."""
    return await send_scope(app, http_scope(path, method, **more), [{"type": "http.request", "body": b""}])


async def connect(app: App, path: str = "/", *, denial: bool = False, **more: Any) -> Answer:
    """One websocket whose client connects, says ``hello`` and leaves."""
    scope = websocket_scope(path, denial=denial, **more)
    hello = {"type": "websocket.receive", "text": "hello"}
    return await send_scope(app, scope, [{"type": "websocket.connect"}, hello])


async def lifespan(app: App, during: Callable[[], Awaitable[None]] | None = None) -> list[str]:
    """A server's startup and shutdown; returns the types of the app's messages.

    Args:
        app: an ASGI app; what it raises is raised here.
        during: awaited between the startup and the shutdown.
    """
    said: list[str] = []
    told: list[str] = []

    async def receive() -> Message:
        if told and during is not None:
            await during()
        told.append("lifespan.shutdown" if told else "lifespan.startup")
        return {"type": told[-1]}

    async def send(message: Message) -> None:
        said.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    return said


async def statuses(app: App, path: str, times: int, method: str = "GET", **more: Any) -> list[int]:
    """The statuses of several equal requests, one after the other."""
    return [(await request(app, path, method, **more)).status for _ in range(times)]
