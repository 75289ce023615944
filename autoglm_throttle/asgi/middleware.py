"""ASGI middleware: turns each scope into a Demand and each Decision into a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import anyio
from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi import marks
from autoglm_throttle.asgi.answers import EXPOSED_FIELDS, LEGACY_NAMES, Answers, refused_by
from autoglm_throttle.asgi.blame import excuse
from autoglm_throttle.asgi.callers import Callers, Identify
from autoglm_throttle.asgi.hinted import MARKER, Hinted
from autoglm_throttle.asgi.inbox import Inbox
from autoglm_throttle.asgi.noted import noted
from autoglm_throttle.asgi.routes import RouteTable, path_of
from autoglm_throttle.journal import LOGGER
from autoglm_throttle.limiting.gate import Ticket
from autoglm_throttle.model import Decision, GuardRejected, Outcome, Rejected, TelemetryState
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import ConfigError
from autoglm_throttle.snapshot import REPLACEABLE, SourceView
from autoglm_throttle.throttle import Throttle

if TYPE_CHECKING:
    from autoglm_throttle.asgi.guarded import Guarded

Message = dict[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

SWITCHING_PROTOCOLS = 101
"""The status of an accepted websocket."""

TRY_AGAIN_LATER = 1013
"""WebSocket close code (IANA registry, RFC 6455): the server is overloaded."""

REASON_AT_MOST = 123
"""Bytes of the reason in a close frame, RFC 6455 section 5.5; a guard's name may be longer."""

FIRST_SAMPLE_WITHIN_S = 5.0
"""Longest wait at startup for a first sample of each source, if ``GPU_REQUIRED`` is set."""

OURS = frozenset(name.encode() for name in (*EXPOSED_FIELDS, *LEGACY_NAMES))
CLIENT_LEFT = (ClientDisconnect, WebSocketDisconnect)

_SUCCESS, _FAILURE = Outcome.SUCCESS, Outcome.FAILURE
"""Before Python 3.12 reading a member from its class costs as much as a dictionary lookup."""


class ThrottleMiddleware:
    """Limits requests to an ASGI app: http and websocket; everything else passes through.

    Args:
        app: the app to protect.
        throttle: the limits; None reads them from the environment. Keep this object as the handle,
            since frameworks build middleware late and more than once.
        identify: identifies the caller from the scope; None: as in the settings.
        breaker: name of the guard around the app, configured by ``throttle.feature(name, ...)``; None: no
            breaker. The app's own failures open it. While it is open, the feature's fallback answers before
            any limit is checked; without a fallback requests are rejected with 503.

    Raises:
        ConfigError: the environment, or ``IDENTITY``, is not usable. If a running server builds the
            middleware, the startup fails instead: servers take an exception there for "no lifespan"
            and would go on.
    """

    def __init__(
        self,
        app: App,
        *,
        throttle: Throttle | None = None,
        identify: Identify | None = None,
        breaker: str | None = None,
    ) -> None:
        self.app: App = app
        self._guard: Guarded | None = None
        try:
            self._prepare(throttle if throttle is not None else Throttle.from_env(), identify)
            if breaker is not None:
                self._put_guard(breaker)
        except ConfigError as error:
            if not _in_event_loop():
                raise
            # Inside a running server an exception here means "no lifespan"; fail the startup instead.
            self._fault = error
            self.__class__ = _Unusable

    def _prepare(self, throttle: Throttle, identify: Identify | None) -> None:
        self.throttle = throttle
        settings = throttle.settings
        self._routes = RouteTable(settings.routes)
        self._callers = Callers(settings, self._routes, identify=identify, hint=throttle.record_oddity)
        self._answers = Answers(
            settings.headers, retry_after_max_s=settings.retry_after_max_s, jitter=settings.retry_jitter
        )
        self._exempt = frozenset(settings.exempt_paths)
        self._marks = marks.Marks(self.app, self._routes)
        if settings.quotas:
            self.app = Hinted(self.app, throttle)
        self._nested = False

    def _put_guard(self, name: str) -> None:
        """Put the breaker between the limits and the app."""
        from autoglm_throttle.asgi.app_guard import (
            AppGuard,
        )  # imports all guards: not needed without one
        from autoglm_throttle.asgi.guarded import Guarded

        self.app = guard = AppGuard(self.app, self.throttle, name, self._answer)
        self._guard = Guarded(self.throttle, guard, self._callers.demand, self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901, PLR0912, PLR0915 - a call costs 1 %
        """Handle one connection."""
        if not self._limits(scope):
            await self._free(scope, receive, send)
            return
        throttle, guard = self.throttle, self._guard
        inbox = None
        if guard is None:
            demand = self._callers.demand(scope)
        elif not guard.quiet and await guard.deals_with(scope, send):
            return
        else:
            demand = guard.demand(scope)
        if throttle.has_leases:
            await throttle.ensure_lease(demand)
        permit: Permit | Ticket | Rejection | None = throttle.try_admit(demand)
        if not isinstance(permit, Permit):
            if isinstance(permit, Ticket):
                if permit.was_queued:
                    inbox = Inbox(receive)
                    receive = inbox.receive
                    permit = await self._turn(permit, inbox)
                else:  # only the shared-store check is pending, for milliseconds
                    permit = await throttle.wait(permit)
            if not isinstance(permit, Permit):
                await self._refuse(scope, send, permit)
                return
        if MARKER in scope:
            self._note(scope, permit)
        else:
            scope[MARKER] = {throttle: permit}
        root_path = scope.get("root_path")
        watch = _Watch(send, permit, self._answers)
        try:
            if throttle.may_degrade:
                await noted(self.app, scope, receive, watch.send)
            else:
                await self.app(scope, receive, watch.send)
        except (Rejected, GuardRejected) as refused:
            watch.settle(Outcome.NEUTRAL)
            if watch.status:
                raise
            await self._answer(scope, send, *_decision(refused))
        except BaseException as error:
            watch.settle(Outcome.NEUTRAL if watch.client_left else _outcome(error))
            raise
        finally:
            # An http app that returned without a last byte proves nothing; a websocket has no last byte.
            if not permit.settled:
                permit.settle(Outcome.NEUTRAL if scope["type"] == "http" else Outcome.SUCCESS)
            if inbox is not None:
                inbox.close()
            endpoint = scope.get("endpoint")
            if endpoint is not None:
                self._check_mark(scope, root_path)

    async def _turn(self, ticket: Ticket, inbox: Inbox) -> Permit | Rejection | None:
        """Wait for a slot while watching for disconnect. Returns None if the client disconnected."""
        verdict = None
        try:
            verdict = await self.throttle.wait(ticket, inbox.left)
        finally:
            # With a Permit the app still reads from the buffer; __call__ closes it.
            if not isinstance(verdict, Permit):
                inbox.close()
        return verdict

    async def _refuse(self, scope: Scope, send: Send, rejection: Rejection | None) -> None:
        if rejection is not None:
            self._note(scope, rejection)
            if self._guard is None or not await self._guard.replaces(scope, send, rejection):
                await self._answer(scope, send, rejection.decision)

    def _note(self, scope: Scope, verdict: Permit | Rejection) -> None:
        """Store the verdict in the scope for inner middleware."""
        charged = scope.get(MARKER)
        if isinstance(charged, dict):
            charged[self.throttle] = verdict
        else:
            scope[MARKER] = {self.throttle: verdict}

    def _limits(self, scope: Scope) -> bool:
        """Whether the limits apply to the connection. They do if the scope is malformed."""
        kind = scope.get("type")
        if kind != "http" and kind != "websocket":  # noqa: PLR1714 - a set would hash what the server sent
            return False
        try:
            if MARKER in scope and self.throttle in scope[MARKER]:
                return False
            path = path_of(scope) if scope.get("root_path") else scope["path"]
            if path in self._exempt or scope.get("method") == "OPTIONS":
                return False
            if not self._routes.any:
                return True
            route = self._routes.match(path, scope.get("method") or "GET")
        except Exception:  # noqa: BLE001 - a scope may hold anything, and the limits must hold all the same
            return True
        # RouteTable collapses slashes, the app's router may not: such a path must not inherit an exemption.
        return route is None or not route.exempt or "//" in path

    async def _free(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run connections that are exempt, already charged by this throttle, or no requests."""
        kind = scope.get("type")
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
        elif kind != "http" and kind != "websocket":  # noqa: PLR1714 - what the server sent may not be hashable
            await self.app(scope, receive, send)
        elif self.throttle in scope.setdefault(MARKER, {}):  # charged by an outer middleware
            self._warn_nested()
            await self.app(scope, receive, send)
        else:
            self.throttle.record_exempt()
            scope[MARKER][self.throttle] = None
            root_path = scope.get("root_path")
            try:
                await self.app(scope, receive, send)
            finally:
                self._check_mark(scope, root_path)

    def _warn_nested(self) -> None:
        if not self._nested:
            self._nested = True
            LOGGER.warning("two middlewares share one throttle round the same app; the inner one passes")

    def _check_mark(self, scope: Scope, root_path: str | None) -> None:
        if not (self._marks.any or hasattr(scope.get("endpoint"), marks.ATTRIBUTE)):
            return
        try:
            path = path_of({"path": scope["path"], "root_path": root_path})
            self._marks.check(scope, path, root_path or "")
        except Exception:  # noqa: BLE001 - what cannot be learned must not break a request
            self.throttle.record_oddity("malformed_scope")

    async def _answer(self, scope: Scope, send: Send, decision: Decision, cause: str = "load") -> None:
        excuse(scope, cause if decision.reason in REPLACEABLE else "")
        status, fields, body = self._answers.refusal(decision)
        prefix = "http.response"
        if scope["type"] == "websocket":
            extensions = scope.get("extensions")
            if not (isinstance(extensions, dict) and "websocket.http.response" in extensions):
                await send(
                    {"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": close_reason(decision)}
                )
                return
            prefix = "websocket.http.response"
        elif scope.get("method") == "HEAD":
            body = b""
        await send({"type": f"{prefix}.start", "status": status, "headers": fields})
        await send({"type": f"{prefix}.body", "body": body})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.throttle.start()
        try:
            fault = self.throttle.unsupported_loop() or await self._no_sample()
            if fault:
                await receive()
                await send({"type": "lifespan.startup.failed", "message": fault})
                return
            await self.app(scope, receive, send)
        finally:
            self.throttle.stop()

    async def _no_sample(self) -> str:
        """Return the reason why required first GPU samples are missing; empty if all arrived."""
        if not self.throttle.settings.gpu_required:
            return ""
        deadline = anyio.current_time() + FIRST_SAMPLE_WITHIN_S
        while True:
            silent = [one for one in self.throttle.snapshot().sources if one.age_s is None]
            if not silent and self.throttle.control_state().telemetry is TelemetryState.FRESH:
                return ""
            if anyio.current_time() >= deadline:
                why = "; ".join(_why_silent(one) for one in silent) or "no device tells its load"
                within = f"within {FIRST_SAMPLE_WITHIN_S:g} s, and GPU_REQUIRED is set"
                return f"no GPU sample {within}: {why}"
            await anyio.sleep(0.05)


class _Unusable(ThrottleMiddleware):
    """Replaces a middleware with an invalid configuration: startup fails, and every request raises."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("type") != "lifespan":
            raise self._fault
        await receive()
        await send({"type": "lifespan.startup.failed", "message": str(self._fault)})


class _Watch:
    """Wraps ``send``: adds the header fields, and settles the permit at the last byte."""

    __slots__ = ("_answers", "_permit", "_send", "client_left", "status")

    def __init__(self, send: Send, permit: Permit, answers: Answers) -> None:
        self._send = send
        self._permit = permit
        self._answers = answers
        self.status = 0
        self.client_left = False

    def send(self, message: Message) -> Awaitable[None]:
        """Forward a message. Not a coroutine itself: that would cost one more for each message."""
        kind = message["type"]
        permit = self._permit
        if kind == "http.response.body":
            if message.get("more_body"):
                permit.record_chunk()
                return self._pass_on(message)
            if not permit.settled:
                permit.settle(_FAILURE if self.status >= 500 else _SUCCESS)
        elif kind == "http.response.start" or kind == "websocket.accept":  # noqa: PLR1714 - as above
            self.status = message.get("status", SWITCHING_PROTOCOLS)
            fields = self._answers.fields(permit.decision)
            if fields:
                message = _with_fields(message, fields)
        elif kind == "http.response.pathsend" or (
            kind == "http.response.zerocopysend" and not message.get("more_body")
        ):
            self.settle(_FAILURE if self.status >= 500 else _SUCCESS)
        return self._send(message)

    async def _pass_on(self, message: Message) -> None:
        """Send a part of a stream. A server may raise OSError after a disconnect (ASGI 2.4)."""
        try:
            await self._send(message)
        except OSError:
            self.client_left = True
            raise

    def settle(self, outcome: Outcome) -> None:
        """Settle the permit unless the last byte has done so."""
        if not self._permit.settled:
            self._permit.settle(outcome)


def _in_event_loop() -> bool:
    try:
        anyio.get_current_task()
    except RuntimeError:
        return False
    return True


def _with_fields(message: Message, fields: list[tuple[bytes, bytes]]) -> Message:
    """Return a copy with our fields; the app's own fields of the same name win."""
    headers = message.get("headers")
    if headers.__class__ is not list:
        headers = list(headers or ())  # any iterable is allowed, also one that can be read only once
    for name, _ in headers:
        if name in OURS:
            taken = {name for name, _ in headers}
            fields = [field for field in fields if field[0] not in taken]
            break
    message = message.copy()
    message["headers"] = headers + fields
    return message


def _decision(refused: Rejected | GuardRejected) -> tuple[Decision, str]:
    """Return the decision to send, and the cause passed to a fallback of an outer app."""
    if isinstance(refused, Rejected):
        return refused.decision, "load"
    return refused_by(refused.rejection), refused.rejection.cause


def close_reason(decision: Decision) -> str:
    """Return the reason in the close frame of a rejected websocket."""
    return decision.detail.encode()[:REASON_AT_MOST].decode(errors="ignore")


def _why_silent(source: SourceView) -> str:
    """Return the name of a source without samples, and its error."""
    why = source.last_error or source.state
    return why if why.startswith(source.name) else f"{source.name}: {why}"


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, CLIENT_LEFT) or not isinstance(error, Exception):
        return Outcome.NEUTRAL
    return Outcome.FAILURE
