"""Circuit breaker around an app: admits requests to it and counts the outcome of its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.asgi.advice import MARKER
from autoglm_throttle.asgi.app_fallbacks import AppFallbacks
from autoglm_throttle.asgi.failure_attribution import attribution_of
from autoglm_throttle.asgi.fallback_responder import FallbackResponder, send_answer, settle
from autoglm_throttle.asgi.response_observer import ResponseObserver
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.types import Decision, GuardPermit, GuardRejected, GuardRejection, Outcome

if TYPE_CHECKING:
    from autoglm_throttle.resilience.executor import Executor
    from autoglm_throttle.resilience.guard_state import GuardState
    from autoglm_throttle.throttle import Throttle

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
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
            http = executor.http if isinstance(executor, FeatureExecutor) else None
            self._fallbacks = None if http is None else AppFallbacks(http, self.guard_state.clock)
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
