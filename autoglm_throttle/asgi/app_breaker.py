"""Circuit breaker around an app: admits requests to it and counts the outcome of its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from autoglm_throttle.asgi.app_fallbacks import AppFallbacks, FallbackResponder, send_answer, settle
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.asgi.scope import (
    MARKER,
    App,
    FailureAttribution,
    Message,
    Receive,
    Scope,
    Send,
    attribution_of,
)
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.outcomes import apply_slow_limit, status_outcome
from autoglm_throttle.types import (
    BreakerState,
    Decision,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    Rejected,
)

if TYPE_CHECKING:
    from autoglm_throttle.resilience.state import Executor, GuardState
    from autoglm_throttle.throttle import Throttle

SendRejection = Callable[[Scope, Send, Decision, str], Awaitable[None]]


class AppBreaker:
    """Stands between the limits and the app: queries the breaker and reports each request's outcome to it.

    Args:
        app: the guarded app.
        throttle: the owner of the guard.
        name: of the guard.
        send_rejection: sends the response of a rejected request.
    """

    def __init__(self, app: App, throttle: Throttle, name: str, send_rejection: SendRejection) -> None:
        self.app = app
        self._throttle = throttle
        self._name = name
        self._send_rejection = send_rejection
        self._guard_state: GuardState | None = None
        self._executor: Executor | None = None
        self._fallbacks: AppFallbacks | None = None

    @property
    def guard_state(self) -> GuardState:
        """State of the app's guard."""
        return self._guard_state or self._resolve_guard()

    @property
    def fallbacks(self) -> AppFallbacks | None:
        """Fallbacks that replace the app; None for an app that is core and has no fallback."""
        executor = self.guard_state.executor
        if executor is not self._executor:  # the first request, or the first one in a forked process
            self._executor = executor
            served = executor if isinstance(executor, FeatureExecutor) else None
            self._fallbacks = None if served is None else AppFallbacks(served, self.guard_state.clock)
        return self._fallbacks

    @property
    def is_quiet(self) -> bool:
        """Whether the breaker is closed and the app has no fallback."""
        return self.guard_state.fast.permit is not None and self.fallbacks is None

    def rejection(self) -> GuardRejection | None:
        """Return the rejection that the breaker would give now, or None; free of effects."""
        guard_state = self.guard_state
        return None if guard_state.fast.permit is not None else guard_state.rejection()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        permit = (scope.get(MARKER) or {}).get(self._throttle)
        if permit is None or scope["type"] not in {"http", "websocket"}:  # no request, or exempt
            await self.app(scope, receive, send)
            return
        fallbacks = self.fallbacks
        responder = FallbackResponder(fallbacks, permit, scope) if fallbacks is not None else None
        guard_permit = self._closed_permit() or await self.guard_state.allow_async()
        if isinstance(guard_permit, GuardRejection):
            await self._reject(guard_permit, responder, scope, receive, send)
            return
        observer = ResponseObserver(self.guard_state, guard_permit, attribution_of(scope), send, receive)
        try:
            await self.app(
                scope, observer.receive, observer.send if responder is None else responder.bind(observer)
            )
        except Exception as error:
            if not await self._handle_error(error, observer, responder, scope):
                raise
        except BaseException as error:
            observer.on_exception(error)
            raise
        else:
            outcome = not observer.settled and observer.on_return(websocket=scope["type"] == "websocket")
            if outcome is Outcome.FAILURE and responder is not None:
                await responder.replaces(None, outcome)

    def _resolve_guard(self) -> GuardState:
        """Look up the guard at the first request: its feature may be registered after the middleware."""
        guard_state = self._guard_state = self._throttle.guard(self._name).circuit
        return guard_state

    def _closed_permit(self) -> GuardPermit | None:
        """Return the shared permit of a closed breaker, or None if its fleet's state is not known yet."""
        fast = self.guard_state.fast
        guard_permit = fast.permit
        if guard_permit is None or not fast.is_synced:
            return None
        fast.calls += 1  # the shared permit bypasses `allow`, which counts calls
        return guard_permit

    async def _handle_error(
        self, error: Exception, observer: ResponseObserver, responder: FallbackResponder | None, scope: Scope
    ) -> bool:
        """Settle for an app that raised, and answer in its place if possible."""
        outcome = observer.on_exception(error)
        if responder is not None and await responder.replaces(error, outcome):
            return True
        if observer.started or not isinstance(error, GuardRejected):
            return False
        # The inner guard's rejection is no evidence about this app: settle before sending it.
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        await self._send_rejection(
            scope, observer.forward, rejected_by(error.rejection), error.rejection.cause
        )
        return True

    async def _reject(
        self,
        rejection: GuardRejection,
        responder: FallbackResponder | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Reject an admitted request because of the breaker; this says nothing about the service's health."""
        if self._throttle.settings.control.dry_run:
            await self.app(scope, receive, send)
            return
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        answer = (
            None if responder is None else await responder.answer(rejection.cause, GuardRejected(rejection))
        )
        if answer is None:
            await self._send_rejection(scope, send, rejected_by(rejection), rejection.cause)
        else:
            await send_answer(answer, scope, send)


CLIENT_DISCONNECTS = (ClientDisconnect, WebSocketDisconnect)
STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
PARTS = BODIES | {"http.response.pathsend", "http.response.zerocopysend"}

_SUCCESS, _FAILURE, _NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


class ResponseObserver:
    """Observes the messages between app and server, and settles the guard permit once.

    The outcome is known at a failing start, at the end of the body, or when the app raises. A response is
    slow if its first bytes come later than ``first_item_s``, else ``slow_call_s``. A probe call of a stream
    may succeed with its first bytes (``stream_settle``).

    Args:
        guard_state: the state of the app's guard.
        guard_permit: the permit of the request.
        attribution: whether the response is the app's own.
        send: the server's.
        receive: the server's.
    """

    __slots__ = (
        *("_attribution", "_guard_state", "_guard_permit", "_receive", "_send"),
        *("started_s", "client_disconnected", "outcome", "settled", "started"),
    )

    def __init__(
        self,
        guard_state: GuardState,
        guard_permit: GuardPermit,
        attribution: FailureAttribution,
        send: Send,
        receive: Receive,
    ) -> None:
        self._guard_state = guard_state
        self._guard_permit = guard_permit
        self._attribution = attribution
        self._send = send
        self._receive = receive
        self.started_s: float = guard_state.clock()
        """Monotonic."""
        self.outcome: Outcome | None = None
        """Outcome of the request once it is known, also before the response is complete; None until then."""
        self.started: bool = False
        """Whether a message was sent."""
        self.client_disconnected: bool = False
        self.settled: bool = False

    async def receive(self) -> Message:
        """Return the server's message. After a client's disconnect no later event counts against the app."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_disconnected = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Inspect a message, and send it."""
        self.inspect(message)
        return self.forward(message)

    async def forward(self, message: Message) -> None:
        """Send a message. If the server raises, the client counts as disconnected."""
        self.started = True
        try:
            await self._send(message)
        except Exception:
            self.client_disconnected = True
            raise

    def inspect(self, message: Message) -> None:
        """Inspect a message before it is sent."""
        kind = message["type"]
        if kind in STARTS:
            self._start(message["status"])
        elif kind in PARTS:
            more = bool(message.get("more_body"))
            # An empty part with more to come carries no first byte.
            if not more or kind not in BODIES or message.get("body"):
                self._part(more=more)

    def settle(self, outcome: Outcome, cause: BaseException | str | None = None) -> None:
        """Report the request's outcome to the breaker, at most once."""
        if not self.settled:
            self.settled = True
            self.outcome = _NEUTRAL if self._attribution.by_throttle or self.client_disconnected else outcome
            self._guard_state.record(self._guard_permit, self.outcome, cause)

    def on_exception(self, error: BaseException) -> Outcome:
        """Settle for an exception of the app, and return its outcome. Never raises."""
        neutral = self.client_disconnected or isinstance(error, (*CLIENT_DISCONNECTS, Rejected))
        outcome = _NEUTRAL if neutral else self._guard_state.outcome_of(error, raised=True)
        self.settle(outcome, error)
        return outcome

    def on_return(self, *, websocket: bool) -> Outcome:
        """Settle for an app that returned before its response ended; only a disconnect makes this neutral."""
        if websocket:
            self.settle(_SUCCESS)
        else:
            self.settle(_FAILURE, "the app returned before it completed its response")
        return self.outcome or _NEUTRAL

    def _start(self, status: int) -> None:
        verdict = status_outcome(status)
        if self._guard_state.classifier.classify is not None:
            verdict = self._guard_state.outcome_of(status, raised=False, default=verdict)
        if verdict is _FAILURE:
            self.settle(verdict, f"status {status}")
        elif verdict is not _SUCCESS:
            self.outcome = verdict

    def _part(self, *, more: bool) -> None:
        if self.outcome is None:
            guard = self._guard_state
            limit_s = guard.slow_call_s if guard.first_item_s is None else guard.first_item_s
            self.outcome = _SUCCESS
            if limit_s is not None:
                self.outcome = apply_slow_limit(_SUCCESS, guard.clock() - self.started_s, limit_s)
            if more and guard.settles_at_first_item and self._is_probe():
                self.settle(self.outcome)
        if not more:
            self.settle(self.outcome)

    def _is_probe(self) -> bool:
        guard_state, guard_permit = self._guard_state, self._guard_permit
        # A permit of an older generation is no probe of the present half-open state.
        return (
            guard_state.fast.shared_permit.generation == guard_permit.generation
            and guard_state.state() is BreakerState.HALF_OPEN
        )
