"""HTTP exchanges between the ASGI application and its clients: scopes, ``receive`` and ``send``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.types import Message, Scope

from autoglm_throttle.traffic.request_log import REJECTION_BYTES, RequestResult, classify_response
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.types import Priority

BODILESS = (204, 304)  # Statuses without a body, regardless of the stated length

# As uvicorn states it: sending to a disconnected client is no error.
ASGI = {"version": "3.0", "spec_version": "2.3"}

# Cached scopes to copy from, of about 2 kB each; a recording may have one kind per request.
MAX_CACHED = 10_000


def scopes(
    load: RequestSource, priority_header: str, identity_header: str, state: Mapping[str, Any]
) -> Callable[[int], Scope]:
    """Return a function that builds the scope of each planned request, by its index, as a server would.

    Each client has its own address in 10.0.0.0/8, so that limits by address distinguish the users.
    """
    plan = load.plan
    templates: dict[tuple[int, int, int], dict[str, Any]] = {}

    def scope(index: int) -> Scope:
        key = (plan.kinds[index], plan.priorities[index], plan.clients[index])
        template = templates.get(key)
        if template is None:
            template = make(*key)
            if len(templates) < MAX_CACHED:
                templates[key] = template
        # A copy with its own mutable parts, since applications may change them.
        own = {"asgi": ASGI.copy(), "headers": template["headers"].copy(), "state": dict(state)}
        return template | own

    def make(kind: int, priority: int, client: int) -> dict[str, Any]:
        request, number = load.requests[kind], (client + 1) & 0xFFFFFF
        raw_path, _, query = request.target.partition("?")
        fields = [("host", "localhost"), *((name.lower(), text) for name, text in request.headers)]
        if request.priority and priority_header:
            fields.append((priority_header.lower(), Priority(priority).label))
        if identity_header:
            fields.append((identity_header.lower(), load.client(client)))
        if request.body or request.method not in ("GET", "HEAD"):
            fields.append(("content-length", str(len(request.body))))
        return {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(raw_path),
            "raw_path": raw_path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": [(name.encode(), text.encode("ascii", "backslashreplace")) for name, text in fields],
            "client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 50_000),
            "server": ("localhost", 80),
        }

    return scope


class AsgiExchange:
    """The ``receive`` and ``send`` callables of one request, as behind a server, and its response so far."""

    def __init__(
        self,
        index: int,
        request: PlannedRequest,
        sent_s: float,
        on_end: Callable[[AsgiExchange, RequestResult], None],
    ) -> None:
        self.index: int = index
        self._request = request
        self.sent_s: float = sent_s
        self._on_end = on_end
        self._request_delivered = False
        self._over = asyncio.Event()
        self.status: int = 0  # 0 until the response starts
        self.retry_after: bytes | None = None
        self._is_degraded = False
        self._bytes_left: int | None = None  # That must follow; None: the length of the body is not stated
        self.first_s: float | None = None  # Time of the first byte of the body, on the clock of the loop
        self.body_start: bytes = b""  # Of a response with an error, for the reason of a rejection

    async def receive(self) -> Message:
        """ASGI: return the whole request at first, then wait until the exchange is over."""
        if not self._request_delivered:
            self._request_delivered = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI: accept a part of the response; raise RuntimeError for an invalid one, as a server does."""
        kind = message["type"]
        if self._over.is_set():
            return
        if kind == "http.response.start" and not self.status:
            self._start(message)
        elif kind == "http.response.body" and self.status:
            self._record_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"{kind} cannot come {'after the start' if self.status else 'first'}")

    def end(self, result: RequestResult) -> None:
        """End the exchange for the client; only the first call counts."""
        if self._over.is_set():
            return
        self._over.set()
        self._on_end(self, result)

    def app_returned(self) -> None:
        """The application returned or raised: record the result that a server would produce."""
        if self.status:
            self.end(RequestResult.CONNECTION)
        elif not self._over.is_set():
            self.status = 500
            self.end(RequestResult.SERVER_ERROR)

    def _start(self, message: Message) -> None:
        """Read the status and the fields."""
        status = message["status"]
        if not isinstance(status, int) or not 200 <= status <= 999:
            raise RuntimeError(f"{status!r} is no status of an answer: 200 to 999")
        self.status = status
        for name, value in message.get("headers", ()):
            field = name.lower()
            if field == b"retry-after":
                self.retry_after = value
            elif field == b"x-degraded":
                self._is_degraded = True
            elif field == b"content-length" and value.isdigit():
                self._bytes_left = int(value)
        if self._request.method == "HEAD" or status in BODILESS:
            self._bytes_left = None

    def _record_body(self, body: bytes, *, more: bool) -> None:
        """Compare a part of the body with the stated length, and record it."""
        if self._bytes_left is not None:
            self._bytes_left -= len(body)
            if self._bytes_left < 0 or (self._bytes_left and not more):
                self.end(RequestResult.CONNECTION)
                relation = "longer" if self._bytes_left < 0 else "shorter"
                raise RuntimeError(f"the body of the answer is {relation} than its content-length")
        if body and self.first_s is None:
            self.first_s = asyncio.get_running_loop().time()
        if self.status >= 400 and len(self.body_start) < REJECTION_BYTES:
            self.body_start += body
        if not more:
            self.end(classify_response(self.status, self.retry_after, degraded=self._is_degraded))
