"""The skin round an ASGI app: each scope becomes a Demand, each Decision an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
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
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

MARKER = "autoglm_throttle"
"""The scope entry that says what became of the request: a dict from Throttle to Permit or Rejection,
or None where the request is exempt."""

TRY_AGAIN_LATER = 1013
"""WebSocket close code (IANA registry, RFC 6455): the server is overloaded."""

FIRST_SAMPLE_WITHIN_S = 5.0
"""How long a start waits for the first GPU sample where ``GPU_REQUIRED`` is set."""

OURS = frozenset(name.encode() for name in (*NAMES, *LEGACY_NAMES))
CLIENT_LEFT = (ClientDisconnect, WebSocketDisconnect)

_SUCCESS, _FAILURE = Outcome.SUCCESS, Outcome.FAILURE
"""Before Python 3.12 reading a member from its class costs as much as a look into a dictionary."""


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
        self._marks = marks.Marks(app, self._routes)
        self._nested = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        kind = scope.get("type")
        if kind != "http" and kind != "websocket":  # noqa: PLR1714 - a set would hash what the server sent
            await self._unlimited(scope, receive, send)
        elif (MARKER in scope and self.throttle in scope[MARKER]) or self._exempts(scope):
            await self._free(scope, receive, send)
        else:
            verdict = self.throttle.try_admit(self._callers.demand(scope))
            if MARKER in scope:
                scope[MARKER][self.throttle] = verdict
            else:
                scope[MARKER] = {self.throttle: verdict}
            if verdict.admitted:
                await self._run(scope, receive, send, verdict)
            else:
                await self._refuse(scope, send, verdict.decision)

    async def _run(self, scope: Scope, receive: Receive, send: Send, permit: Permit) -> None:
        root_path = scope.get("root_path") or ""
        watch = _Watch(send, permit, self._answers)
        try:
            await self.app(scope, receive, watch.send)
        except Refused as refused:
            watch.settle(Outcome.NEUTRAL)
            if watch.started:
                raise
            await self._refuse(scope, send, refused.decision)
        except BaseException as error:
            watch.settle(Outcome.NEUTRAL if watch.client_left else _outcome(error))
            raise
        finally:
            if not permit.settled:
                permit.settle(Outcome.NEUTRAL if scope["type"] == "http" else Outcome.SUCCESS)
            endpoint = scope.get("endpoint")
            if endpoint is not None and (self._marks.any or hasattr(endpoint, marks.ATTRIBUTE)):
                self._check_mark(scope, root_path)

    async def _free(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run what is exempt, or was charged by this throttle further out."""
        charged = scope.setdefault(MARKER, {})
        if self.throttle in charged:
            self._warn_nested()
            await self.app(scope, receive, send)
            return
        self.throttle.count_exempt()
        charged[self.throttle] = None
        root_path = scope.get("root_path") or ""
        try:
            await self.app(scope, receive, send)
        finally:
            if self._marks.any:
                self._check_mark(scope, root_path)

    async def _unlimited(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("type") == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _warn_nested(self) -> None:
        if not self._nested:
            self._nested = True
            LOGGER.warning("two middlewares share one throttle round the same app; the inner one passes")

    def _exempts(self, scope: Scope) -> bool:
        """Whether the request is free. What is malformed is not."""
        try:
            if scope.get("method") == "OPTIONS":
                return True
            path = path_of(scope) if scope.get("root_path") else scope["path"]
            if path in self._exempt:
                return True
            route = self._routes.match(path, scope.get("method") or "GET") if self._routes.any else None
        except Exception:  # noqa: BLE001 - a scope may hold anything, and the limits must hold all the same
            return False
        return route is not None and route.exempt and "//" not in path

    def _check_mark(self, scope: Scope, root_path: str) -> None:
        try:
            path = path_of({"path": scope["path"], "root_path": root_path})
            self._marks.check(scope, path, root_path)
        except Exception:  # noqa: BLE001 - what cannot be learned must not break a request
            self.throttle.hint("malformed_scope")

    async def _refuse(self, scope: Scope, send: Send, decision: Decision) -> None:
        status, fields, body = self._answers.refusal(decision)
        prefix = "http.response"
        if scope["type"] == "websocket":
            extensions = scope.get("extensions")
            if not (isinstance(extensions, dict) and "websocket.http.response" in extensions):
                await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": decision.detail})
                return
            prefix = "websocket.http.response"
        elif scope.get("method") == "HEAD":
            body = b""
        await send({"type": f"{prefix}.start", "status": status, "headers": fields})
        await send({"type": f"{prefix}.body", "body": body})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.throttle.start()
        try:
            if self.throttle.settings.gpu_required and not await self._first_sample():
                await receive()
                text = f"no GPU sample within {FIRST_SAMPLE_WITHIN_S:g} s, and GPU_REQUIRED is set"
                await send({"type": "lifespan.startup.failed", "message": text})
                return
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

    __slots__ = ("_answers", "_permit", "_send", "_status", "client_left", "started")

    def __init__(self, send: Send, permit: Permit, answers: Answers) -> None:
        self._send = send
        self._permit = permit
        self._answers = answers
        self._status = 0
        self.client_left = False
        self.started = False

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message on. Not a coroutine itself: that would cost one more for each message."""
        kind = message["type"]
        if kind == "http.response.body":
            if message.get("more_body"):
                return self._pass_on(message)
            if not self._permit.settled:
                self._permit.settle(_FAILURE if self._status >= 500 else _SUCCESS)
        elif kind == "http.response.start" or kind == "websocket.accept":  # noqa: PLR1714 - as above
            self.started = True
            self._status = message.get("status", 0)
            fields = self._answers.fields(self._permit.decision)
            if fields:
                message = _with_fields(message, fields)
        elif kind == "http.response.pathsend":
            self.settle(_FAILURE if self._status >= 500 else _SUCCESS)
        return self._send(message)

    async def _pass_on(self, message: Message) -> None:
        """Send a part of a stream; a server may raise OSError once nobody listens (ASGI 2.4)."""
        try:
            await self._send(message)
        except OSError:
            self.client_left = True
            raise

    def settle(self, outcome: Outcome) -> None:
        """Settle the permit unless the last byte has done so."""
        if not self._permit.settled:
            self._permit.settle(outcome)


def _with_fields(message: Message, fields: list[tuple[bytes, bytes]]) -> Message:
    """A copy with our fields; the app's own of the same name win."""
    headers = message.get("headers") or ()
    if not isinstance(headers, list):
        headers = list(headers)  # any iterable is allowed, also one that can be read only once
    for name, _ in headers:
        if name in OURS:
            taken = {name for name, _ in headers}
            fields = [field for field in fields if field[0] not in taken]
            break
    message = message.copy()
    message["headers"] = [*headers, *fields]
    return message


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, CLIENT_LEFT) or not isinstance(error, Exception):
        return Outcome.NEUTRAL
    return Outcome.FAILURE
