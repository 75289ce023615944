"""The skin round an ASGI app: each scope becomes a Demand, each Decision an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi import marks
from autoglm_throttle.asgi.answers import LEGACY_NAMES, NAMES, Answers
from autoglm_throttle.asgi.callers import Callers, Identify
from autoglm_throttle.asgi.routes import RouteTable, path_of
from autoglm_throttle.journal import LOGGER
from autoglm_throttle.model import Decision, Outcome, Refused, Telemetry
from autoglm_throttle.throttle import Permit, Throttle

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

MARKER = "autoglm_throttle"
"""The scope entry that says what became of the request: a dict from Throttle to Permit or Rejection."""

TRY_AGAIN_LATER = 1013
"""WebSocket close code (IANA registry, RFC 6455): the server is overloaded."""

FIRST_SAMPLE_WITHIN_S = 5.0
"""How long a start waits for the first GPU sample where ``GPU_REQUIRED`` is set."""

ENDPOINTS_AT_MOST = 10_000
"""Endpoints looked at for marks: an app that makes new ones for each request must not fill the memory."""

LIMITED_TYPES = frozenset({"http", "websocket"})
STARTS = frozenset({"http.response.start", "websocket.accept"})
OURS = frozenset(name.encode() for name in (*NAMES, *LEGACY_NAMES))
CLIENT_LEFT = (ClientDisconnect, WebSocketDisconnect)


class ThrottleMiddleware:
    """Limits what reaches an ASGI app: http and websocket; everything else passes through.

    Args:
        app: the app to protect.
        throttle: the limits; None reads them from the environment. The handle to keep is this object,
            since frameworks build middleware late and more than once.
        identify: says who asks, from the scope; None: as the settings say.

    Raises:
        ConfigError: the environment, or ``IDENTITY``, is not usable.
    """

    def __init__(
        self, app: App, *, throttle: Throttle | None = None, identify: Identify | None = None
    ) -> None:
        self.app = app
        self.throttle = throttle = throttle if throttle is not None else Throttle.from_env()
        settings = throttle.settings
        self._routes = RouteTable(settings.routes)
        self._callers = Callers(settings, self._routes, identify=identify, hint=throttle.hint)
        self._answers = Answers(
            settings.headers, retry_after_max_s=settings.retry_after_max_s, jitter=settings.retry_jitter
        )
        self._exempt = frozenset(settings.exempt_paths)
        self._endpoints_seen: set[int] = set()
        self._nested = False
        self._routes.learn(marks.visible(app))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        kind = scope.get("type")
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
        elif kind not in LIMITED_TYPES or self._passes(scope):
            await self.app(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        """Whether the request is exempt, or was charged by this throttle further out."""
        charged = scope.get(MARKER)
        if charged is not None and self.throttle in charged:
            if not self._nested:
                self._nested = True
                LOGGER.warning("two middlewares share one throttle round the same app; the inner one passes")
            return True
        path = path_of(scope)
        exempt = scope.get("method") == "OPTIONS" or path in self._exempt
        if not exempt and self._routes:
            route = self._routes.match(path, scope.get("method") or "GET")
            exempt = route is not None and route.exempt
        if exempt:
            self.throttle.count_exempt()
        return exempt

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        throttle = self.throttle
        verdict = await throttle.admit(self._callers.demand(scope))
        scope.setdefault(MARKER, {})[throttle] = verdict
        if not verdict.admitted:
            await self._refuse(scope, receive, send, verdict.decision)
            return
        root_path = scope.get("root_path") or ""
        watch = _Watch(send, verdict, self._answers)
        try:
            await self.app(scope, receive, watch.send)
        except Refused as refused:
            watch.settle(Outcome.NEUTRAL)
            if watch.started:
                raise
            await self._refuse(scope, receive, send, refused.decision)
        except BaseException as error:
            watch.settle(_outcome(error))
            raise
        else:
            watch.settle(Outcome.NEUTRAL if scope["type"] == "http" else Outcome.SUCCESS)
        finally:
            endpoint = scope.get("endpoint")
            if endpoint is not None and id(endpoint) not in self._endpoints_seen:
                self._learn(scope, root_path)

    def _learn(self, scope: Scope, root_path: str) -> None:
        if len(self._endpoints_seen) < ENDPOINTS_AT_MOST:
            self._endpoints_seen.add(id(scope["endpoint"]))
            policy = marks.learned(scope, root_path)
            if policy is not None and not self._routes.knows(policy.name):
                self._routes.learn([policy])

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        status, fields, body = self._answers.refusal(decision)
        prefix = "http.response"
        if scope["type"] == "websocket":
            await receive()
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": decision.detail})
                return
            prefix = "websocket.http.response"
        elif scope.get("method") == "HEAD":
            body = b""
        await send({"type": f"{prefix}.start", "status": status, "headers": fields})
        await send({"type": f"{prefix}.body", "body": body})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.throttle.start()
        if self.throttle.settings.gpu_required and not await self._first_sample():
            await receive()
            text = f"no GPU sample within {FIRST_SAMPLE_WITHIN_S:g} s, and GPU_REQUIRED is set"
            await send({"type": "lifespan.startup.failed", "message": text})
            return
        try:
            await self.app(scope, receive, send)
        finally:
            self.throttle.stop()

    async def _first_sample(self) -> bool:
        with anyio.move_on_after(FIRST_SAMPLE_WITHIN_S):
            while self.throttle.regime().telemetry is not Telemetry.FRESH:  # noqa: ASYNC110 - set by a thread
                await anyio.sleep(0.05)
            return True
        return False


class _Watch:
    """Stands between the app and ``send``: adds the fields, and settles the permit at the last byte."""

    __slots__ = ("_answers", "_permit", "_send", "_status", "started")

    def __init__(self, send: Send, permit: Permit, answers: Answers) -> None:
        self._send = send
        self._permit = permit
        self._answers = answers
        self._status = 0
        self.started = False

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on. Not a coroutine itself: that would cost one more for each message."""
        kind = message["type"]
        if kind == "http.response.body":
            if not message.get("more_body"):
                self._finish()
        elif kind in STARTS:
            self.started = True
            self._status = message.get("status", 0)
            fields = self._answers.fields(self._permit.decision)
            if fields:
                message = _with_fields(message, fields)
        elif kind == "http.response.pathsend":
            self._finish()
        return self._send(message)

    def _finish(self) -> None:
        self.settle(Outcome.FAILURE if self._status >= 500 else Outcome.SUCCESS)

    def settle(self, outcome: Outcome) -> None:
        """Settle the permit unless the last byte has done so."""
        if not self._permit.settled:
            self._permit.settle(outcome)


def _with_fields(message: Message, fields: list[tuple[bytes, bytes]]) -> Message:
    """A copy with our fields; the app's own of the same name win."""
    headers = list(message.get("headers") or ())
    for name, _ in headers:
        if name in OURS:
            taken = {name for name, _ in headers}
            fields = [field for field in fields if field[0] not in taken]
            break
    return {**message, "headers": headers + fields}


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, CLIENT_LEFT) or not isinstance(error, Exception):
        return Outcome.NEUTRAL
    return Outcome.FAILURE
