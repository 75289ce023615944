"""Reverse proxy with admission control, for servers that take no middleware: ``Gateway(["http://llm:8000"])``.

Bodies are forwarded part by part as they arrive. No request is sent twice.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from operator import attrgetter
from typing import Final, cast
from urllib.parse import quote

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocketClose

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.asgi.dialects import Field, dialect_of, error_body
from autoglm_throttle.asgi.scope import Message, Receive, Scope, Send
from autoglm_throttle.observe import metrics_app
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.types import GuardRejected, GuardRejection, Outcome
from autoglm_throttle.types.identity import ProxyChain

try:
    import httpx
except ImportError:
    raise ImportError(f"the gateway needs httpx: {how_to_install('gateway')}", name="httpx") from None

from autoglm_throttle.resilience.http.body import close_async, pairs
from autoglm_throttle.resilience.http.fields import end_to_end, is_forwarding, retry_after_s, without
from autoglm_throttle.resilience.httpx import AsyncGuardTransport, TransportRejected, origin, parse_origins

CONNECT_S: Final = 5.0  # Longest time to connect; then another upstream gets the request
# Longest time without a byte from an upstream: the default time-out of the openai client. BREAKER_TIMEOUT_S
# and `breaker_stream_idle_s` shorten it.
SILENCE_S: Final = 600.0
# Time without a byte from an upstream that has requests in flight; after it the others get the new ones.
SILENT_AFTER_S: Final = 10.0
# Idle connections are closed before the servers do it, uvicorn and llama.cpp after 5 s: a request on a
# connection that its server is closing fails, and may not be sent again.
KEEP_ALIVE_S: Final = 2.0
RETRY_S: Final = 1.0  # Least Retry-After of a 429 or 503 that came without one

PROBLEMS: Final = {  # Status -> reason and detail of the gateway's own answers
    400: ("bad_request", "The request is not valid HTTP."),
    502: ("bad_response", "The upstream gave no valid response. It may have executed the request."),
    503: ("unreachable", "No upstream can be reached."),
    504: ("timeout", "The upstream did not respond in time. It may have executed the request."),
    508: ("loop", "The request has passed this gateway before: an upstream leads back to it."),
}

NewTransport = Callable[[httpx.URL], httpx.AsyncBaseTransport]
NewGuarded = Callable[[], AsyncGuardTransport]
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # Raised before a byte
_TIMEOUTS: Final = {"connect": CONNECT_S, "pool": CONNECT_S, "read": SILENCE_S, "write": SILENCE_S}


class Gateway:
    """ASGI app that forwards each request to one of some upstreams, behind a `ThrottleMiddleware`.

    The one with the fewest requests in flight gets the next one. Each has a guard, named by its origin: while
    its breaker is open, the others serve. ``/healthz`` and ``/metrics`` are the gateway's. It needs asyncio.

    Args:
        upstreams: URLs of servers, such as ``http://10.0.0.7:8000``, without a path.
        throttle: the limits; None reads them from the environment.
        new_transport: makes a connection to the upstream with this URL, for one request at a time.

    Raises:
        ConfigError: with every problem of the upstreams, or of the environment.
    """

    def __init__(
        self,
        upstreams: Sequence[str],
        *,
        throttle: Throttle | None = None,
        new_transport: NewTransport | None = None,
    ) -> None:
        urls = parse_origins("upstream", upstreams)
        self.throttle: Throttle = Throttle.from_env() if throttle is None else throttle
        made = (Upstream(url, self.throttle, new_transport) for url in urls)
        self.upstreams: tuple[Upstream, ...] = tuple(made)
        callers = self.throttle.settings.callers
        self._proxies = ProxyChain(callers.trusted_proxies, callers.ipv6_prefix)
        # In Via, it distinguishes a request that an upstream has sent back from all others.
        self._pseudonym = b"autoglm-throttle-" + secrets.token_hex(8).encode()
        self._metrics = metrics_app(self.throttle)
        self._limited = ThrottleMiddleware(self._serve, throttle=self.throttle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == "/healthz":
            available = sum(upstream.guard.is_available() for upstream in self.upstreams)
            await JSONResponse({"upstreams": len(self.upstreams), "available": available})(
                scope, receive, send
            )
        elif path == "/metrics":
            await self._metrics(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an admitted connection."""
        kind = scope["type"]
        if kind == "http":
            await self._proxy(scope, receive, send)
        elif kind == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif kind == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            for upstream in self.upstreams:
                await upstream.close_idle(math.inf)
            await send({"type": "lifespan.shutdown.complete"})

    async def _proxy(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, until its response has ended or its client has left."""
        first = await receive()
        if first["type"] == "http.disconnect":
            return
        # httpcore shields its clean-up from such a scope. A task that is cancelled twice would leak the
        # connection (encode/httpx#3782).
        with anyio.CancelScope() as work:
            client = _Client(first, receive, work.cancel)
            try:
                problem = await self._exchange(scope, client, send)
                if problem is not None:
                    await self._problem(scope, problem)(scope, receive, send)
            except (ClientDisconnect, OSError):  # OSError: of `send`; httpx has exceptions of its own
                pass  # the connection to the upstream is closed by now
            finally:
                client.stop()

    async def _exchange(self, scope: Scope, client: _Client, send: Send) -> int | None:
        """Send a request to the first upstream that can be reached; without one return a status."""
        if any(name == b"via" and self._pseudonym in value for name, value in scope["headers"]):
            return 508
        fields = self._request_fields(scope, client)
        target = scope.get("raw_path") or quote(scope["path"]).encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        now = time.monotonic()
        rejections: list[GuardRejection] = []
        for upstream in sorted(self.upstreams, key=lambda each: each.rank(now)):
            request = httpx.Request(
                scope["method"],
                upstream.url,
                headers=[(b"host", upstream.url.netloc), *fields],
                stream=client,
                extensions={"target": target, "timeout": _TIMEOUTS},
            )
            await upstream.close_idle(now - KEEP_ALIVE_S)
            transport = upstream.begin(now)
            try:
                return await self._attempt(upstream, transport, request, send)
            except TransportRejected as error:
                rejections.append(error.rejection)
            except _NOT_SENT:
                pass
            finally:
                upstream.end(transport)
        if not rejections:
            return 503
        soonest = min(rejections, key=attrgetter("retry_after_s"))
        raise GuardRejected(soonest._replace(name="upstream"))  # its address is not for clients

    async def _attempt(
        self, upstream: Upstream, transport: AsyncGuardTransport, request: httpx.Request, send: Send
    ) -> int | None:
        """Send a request to one upstream and forward its response; without one return a status."""
        try:
            response = await transport.handle_async_request(request)
        except (TransportRejected, *_NOT_SENT):
            raise  # nothing was sent
        except httpx.TransportError as error:
            if isinstance(error, httpx.TimeoutException):
                return 504
            return 400 if isinstance(error, httpx.LocalProtocolError) else 502
        try:
            upstream.last_byte_s = time.monotonic()
            fields = self._response_fields(upstream, response)
            await send({"type": "http.response.start", "status": response.status_code, "headers": fields})
            async for part in cast("httpx.AsyncByteStream", response.stream):
                upstream.last_byte_s = time.monotonic()
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except httpx.TransportError:
            # Without its last message the server closes the connection, so the client sees the truncation.
            return None
        finally:
            await close_async(response)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    def _request_fields(self, scope: Scope, client: _Client) -> list[Field]:
        """Return the header fields for an upstream, except Host."""
        headers, peer = end_to_end(scope["headers"]), (scope.get("client") or ("",))[0]
        is_trusted = self._proxies.trusts(peer)
        # From a client that is no trusted proxy they are not believed: it could state any address.
        kept = [field for field in headers if is_trusted or not is_forwarding(field[0])]
        names = {name for name, _ in kept} - {b"x-forwarded-for", b"via"}
        hops = [value for name, value in kept if name == b"x-forwarded-for"]
        own = [
            (b"x-forwarded-for", b", ".join([*hops, peer.encode()] if peer else hops)),
            (b"x-forwarded-host", dict(headers).get(b"host", b"")),
            (b"x-forwarded-proto", scope.get("scheme", "http").encode()),
            (b"via", b"1.1 " + self._pseudonym),  # behind those of other proxies
        ]
        fields = without(kept, b"host", b"x-forwarded-for")
        fields += [(name, value) for name, value in own if value and name not in names]
        if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            fields, is_chunked = without(fields, b"content-length"), True  # RFC 9112 section 6.3
        else:
            is_chunked = client.has_body and b"content-length" not in names  # HTTP/2 needs neither field
        return [*fields, (b"transfer-encoding", b"chunked")] if is_chunked else fields

    def _response_fields(self, upstream: Upstream, response: httpx.Response) -> list[Field]:
        """Return the header fields of a response for the client, and record whether the upstream is busy."""
        status = response.status_code
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        fields = end_to_end(headers)
        # Content-Length of a 304 belongs to another response, and a server would wait for such a body.
        if status == 304 or any(name == b"transfer-encoding" for name, _ in headers):
            fields = without(fields, b"content-length")
        if status in (429, 503):
            wait_s = retry_after_s(pairs(response.headers), time.time())
            if wait_s is None:
                fields += self._retry_fields()
            if status == 503:  # a 429 may concern one caller alone
                upstream.busy_until_s = upstream.last_byte_s + (RETRY_S if wait_s is None else wait_s)
        return fields

    def _retry_fields(self) -> list[Field]:
        """Return a time to wait: not before those whom the concurrency limit has rejected."""
        view, responses = self.throttle.snapshot().concurrency, self.throttle.settings.responses
        wait_s = max(RETRY_S, 0.0 if view is None else view.retry_backlog_s)
        wait_s = min(wait_s * (1.0 + responses.retry_jitter * random.random()), responses.retry_after_max_s)
        seconds, ms = math.ceil(wait_s), math.ceil(wait_s * 1e3)
        return [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % ms)]

    def _problem(self, scope: Scope, status: int) -> Response:
        """Return an answer of the gateway, in the dialect of the path."""
        reason, detail = PROBLEMS[status]
        dialect = dialect_of(scope["path"], self.throttle.settings.responses.errors)
        kind, body = error_body(dialect, status, HTTPStatus(status).phrase, detail, f"gateway:{reason}")
        response = Response(body, status)
        response.raw_headers += [kind, *(self._retry_fields() if status == 503 else ())]
        return response


class Upstream:
    """One server behind the gateway: its guard, its connections, and its state as the gateway sees it."""

    def __init__(self, url: httpx.URL, throttle: Throttle, new_transport: NewTransport | None) -> None:
        name = origin(url)
        self.url: httpx.URL = url
        self.guard: Guard = throttle.feature(name, classify=_busy_is_neutral, ignore=ClientDisconnect)
        # To load the certificate authorities takes 0.1 s, and only https needs them.
        context = httpx.create_ssl_context(verify=url.scheme == "https")
        limits = httpx.Limits(keepalive_expiry=KEEP_ALIVE_S)
        make = new_transport or (lambda _: httpx.AsyncHTTPTransport(verify=context, limits=limits))
        self._connect: NewGuarded = lambda: AsyncGuardTransport(throttle, make(url), name=name)
        # One for each request in flight: the time of a pool grows with the square of its idle connections.
        self._idle: deque[tuple[float, AsyncGuardTransport]] = deque()
        self.in_flight: int = 0  # Requests that it has, until the last byte of their responses
        self.last_byte_s: float = -math.inf  # Monotonic time of its newest byte, or since when it works
        self.busy_until_s: float = -math.inf  # Monotonic time until which it has asked for no requests
        self._begun_s = -math.inf  # Monotonic time of its newest request

    def begin(self, now: float) -> AsyncGuardTransport:
        """Count a request in flight, and return its transport; call `end` with it."""
        self.last_byte_s = self.last_byte_s if self.in_flight else now
        self.in_flight += 1
        self._begun_s = now
        return self._idle.pop()[1] if self._idle else self._connect()

    def end(self, transport: AsyncGuardTransport) -> None:
        """Count a request no longer."""
        self.in_flight -= 1
        self._idle.append((time.monotonic(), transport))

    async def close_idle(self, until_s: float) -> None:
        """Close transports that have had no request since then."""
        while self._idle and self._idle[0][0] < until_s:
            await self._idle.popleft()[1].aclose()

    def rank(self, now: float) -> tuple[bool, int, float]:
        """Return the key that orders upstreams for a new request; equal ones take turns."""
        # Without its first part, an upstream that answers each request with 503 at once would get all, and a
        # frozen one would get one more whenever the others have as many as it.
        is_silent = self.in_flight > 0 and now - self.last_byte_s > SILENT_AFTER_S
        return is_silent or now < self.busy_until_s, self.in_flight, self._begun_s


class _Client(httpx.AsyncByteStream):
    """The client of one request: the body that it sends, then a watch for its disconnect until `stop`."""

    def __init__(self, first: Message, receive: Receive, on_disconnect: Callable[[], None]) -> None:
        self._first = first
        self._receive = receive
        self._on_disconnect = on_disconnect
        self._watch: asyncio.Future[Message] | None = None
        self.has_body: bool = bool(first.get("body") or first.get("more_body"))
        if not first.get("more_body"):
            self._start_watch()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message = self._first
        while message["type"] != "http.disconnect":
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                if self._watch is None:
                    self._start_watch()
                return
            message = await self._receive()
        raise ClientDisconnect

    def _start_watch(self) -> None:
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(self._received)

    def _received(self, watch: asyncio.Future[Message]) -> None:
        # A server whose `receive` fails has lost the client, too.
        if not watch.cancelled() and (watch.exception() or watch.result()["type"] == "http.disconnect"):
            self._on_disconnect()

    def stop(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.remove_done_callback(self._received)
            self._watch.cancel()


def _busy_is_neutral(result: object) -> Outcome | None:
    """Classify 503 as no failure: inference servers send it while they load a model or have a full queue."""
    return Outcome.NEUTRAL if isinstance(result, httpx.Response) and result.status_code == 503 else None
