"""HTTP exchanges between the ASGI application and its clients: scopes, ``receive`` and ``send``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import Message, Scope

from autoglm_throttle.traffic.request_log import REJECTION_BYTES, RequestResult, classify_response
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.types import Priority

BODILESS = (204, 304)  # Statuses without a body, regardless of the stated length

# As uvicorn states it: sending to a disconnected client is no error.
ASGI = {"version": "3.0", "spec_version": "2.3"}

# Cached scopes to copy from, of about 2 kB each; a recording may have one kind per request.
MAX_CACHED = 10_000


class Scopes:
    """Builds the scope of each planned request, as a server would; once for each kind.

    Each client has its own address in 10.0.0.0/8, so that limits by address distinguish the users. Behind
    a real server all of them would come from the one machine of the generator.
    """

    def __init__(
        self, load: RequestSource, priority_header: str, identity_header: str, state: Mapping[str, Any]
    ) -> None:
        self._load = load
        self._priority_header = priority_header.lower().encode("ascii")
        self._identity_header = identity_header.lower().encode("ascii")
        self._state = state
        self._templates: dict[tuple[int, int, int], dict[str, Any]] = {}

    def scope(self, index: int) -> Scope:
        """Return the scope of a request, by its index."""
        plan = self._load.plan
        key = (plan.kinds[index], plan.priorities[index], plan.clients[index])
        template = self._templates.get(key)
        if template is None:
            template = self._make(*key)
            if len(self._templates) < MAX_CACHED:
                self._templates[key] = template
        # A copy with its own mutable parts, since applications may change them.
        return template | {
            "asgi": ASGI.copy(),
            "headers": template["headers"].copy(),
            "state": dict(self._state),
        }

    def _make(self, kind: int, priority: int, client: int) -> dict[str, Any]:
        raw_path, _, query = self._load.requests[kind].target.partition("?")
        number = (client + 1) & 0xFFFFFF
        return {
            "type": "http",
            "http_version": "1.1",
            "method": self._load.requests[kind].method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": self._fields(kind, priority, client),
            "client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 50_000),
            "server": ("localhost", 80),
        }

    def _fields(self, kind: int, priority: int, client: int) -> list[tuple[bytes, bytes]]:
        request = self._load.requests[kind]
        fields = [(b"host", b"localhost")]
        fields += [(name.lower().encode("ascii"), text.encode("ascii")) for name, text in request.headers]
        if request.priority and self._priority_header:
            fields.append((self._priority_header, Priority(priority).label.encode("ascii")))
        if self._identity_header:
            text = self._load.client(client).encode("ascii", "backslashreplace")
            fields.append((self._identity_header, text))
        if request.body or request.method not in ("GET", "HEAD"):
            fields.append((b"content-length", b"%d" % len(request.body)))
        return fields


@dataclass(slots=True)
class AsgiResponse:
    """The part of a response that the client has received."""

    status: int = 0  # 0 until the response starts
    retry_after: bytes | None = None
    degraded: bool = False
    bytes_left: int | None = None  # Bytes of the body that must follow; None: its length is not stated
    # Start of the body, for parsing the reason of a rejection; None before its first byte.
    body_start: bytes | None = None

    def start(self, message: Message, *, bodiless: bool) -> None:
        """Read the status and the fields; raise RuntimeError for an invalid status."""
        status = message["status"]
        if not isinstance(status, int) or not 200 <= status <= 999:
            raise RuntimeError(f"{status!r} is no status of an answer: 200 to 999")
        self.status = status
        for name, value in message.get("headers", ()):
            field = name.lower()
            if field == b"retry-after":
                self.retry_after = value
            elif field == b"x-degraded":
                self.degraded = True
            elif field == b"content-length" and value.isdigit():
                self.bytes_left = int(value)
        if bodiless or status in BODILESS:
            self.bytes_left = None

    def classify(self) -> RequestResult:
        """Result of a complete response."""
        return classify_response(self.status, self.retry_after, degraded=self.degraded)


class AsgiExchange:
    """The ``receive`` and ``send`` callables of one request.

    As behind a server, ``receive`` reports a disconnect, and sending to a disconnected client is no error.
    ``on_body`` is called at the first byte of the response body, ``on_end`` when the client has its response.
    """

    __slots__ = (
        *("_bodiless", "_body", "_disconnected", "_on_body", "_on_end", "_over", "_request_delivered"),
        *("index", "response"),
    )

    def __init__(
        self,
        index: int,
        body: bytes,
        *,
        head: bool,
        on_body: Callable[[int], None],
        on_end: Callable[[AsgiExchange, RequestResult], None],
    ) -> None:
        self._body = body
        self._on_body = on_body
        self._on_end = on_end
        self._request_delivered = False
        self._over = False
        self._bodiless = head
        self._disconnected: asyncio.Future[None] | None = None
        self.index: int = index
        self.response: AsgiResponse = AsgiResponse()

    async def receive(self) -> Message:
        """ASGI: return the whole request at first, then wait until the exchange is over."""
        if not self._request_delivered:
            self._request_delivered = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if not self._over:
            if self._disconnected is None:
                self._disconnected = asyncio.get_running_loop().create_future()
            # Cancelling one receive() must not cancel the future that another one waits for.
            await asyncio.shield(self._disconnected)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI: accept a part of the response.

        Raises:
            RuntimeError: the part is out of order, its status is not valid, or its body is longer or shorter
                than its content-length: as a server does, which then closes the connection.
        """
        kind = message["type"]
        if self._over:
            return
        response = self.response
        if kind == "http.response.start" and not response.status:
            response.start(message, bodiless=self._bodiless)
        elif kind == "http.response.body" and response.status:
            more, body = message.get("more_body", False), message.get("body", b"")
            self._check_length(len(body), more=more)
            self._record_body(body)
            if not more:
                self.end(response.classify())
        else:
            raise RuntimeError(f"{kind} cannot come {'after the start' if response.status else 'first'}")

    def end(self, result: RequestResult) -> None:
        """End the exchange for the client; only the first call counts."""
        if self._over:
            return
        self._over = True
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)
        self._on_end(self, result)

    def app_returned(self) -> None:
        """The application returned or raised: record the result that a server would produce."""
        if self.response.status:
            self.end(RequestResult.CONNECTION)
        elif not self._over:
            self.response.status = 500
            self.end(RequestResult.SERVER_ERROR)

    def _check_length(self, length: int, *, more: bool) -> None:
        """Compare the body with the stated length."""
        response = self.response
        if response.bytes_left is None:
            return
        response.bytes_left -= length
        if response.bytes_left < 0 or (response.bytes_left and not more):
            self.end(RequestResult.CONNECTION)
            relation = "longer" if response.bytes_left < 0 else "shorter"
            raise RuntimeError(f"the body of the answer is {relation} than its content-length")

    def _record_body(self, body: bytes) -> None:
        if not body:
            return
        response = self.response
        if response.body_start is None:
            response.body_start = b""
            self._on_body(self.index)
        if response.status >= 400 and len(response.body_start) < REJECTION_BYTES:
            response.body_start += body
