"""Circuit breaker around an app: admits requests to it and counts the outcome of its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from autoglm_throttle.asgi.app_fallbacks import AppFallbacks, FallbackResponder, send_answer, settle
from autoglm_throttle.asgi.response_observer import ResponseObserver
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.asgi.scope import MARKER, App, Receive, Scope, Send, attribution_of
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.types import Decision, GuardPermit, GuardRejected, GuardRejection, Outcome

if TYPE_CHECKING:
    from autoglm_throttle.resilience.state import Executor, GuardState
    from autoglm_throttle.throttle import Throttle
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import ProvisionalDemand, Rejection
from autoglm_throttle.resilience.fallback import LOAD, DegradationAction
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.types import Demand, Reason

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


# Decision under which a request is counted if a degradation level answered instead of the app.
DEGRADED_DECISION = Decision(False, Reason.GPU, "gpu:degraded", "gpu")


class AppBreakerPath:
    """Answers requests that need no admission, by the state of the breaker and the degradation level.

    Such a request takes nothing from any limit. `AppBreaker` acquires the guard permit after admission.
    In a dry run all requests are admitted, and the breaker's rejections are only counted.

    Args:
        throttle: counts the decisions made here.
        app: the app with its breaker.
        demand: builds the demand of a request.
        send_rejection: sends the response of a rejected request, given a decision and a cause.
    """

    def __init__(
        self,
        throttle: Throttle,
        app: AppBreaker,
        demand: Callable[[Scope], Demand],
        send_rejection: Callable[[Scope, Send, Decision, str], Awaitable[None]],
    ) -> None:
        self._throttle = throttle
        self._app = app
        self._demand = demand
        self._send_rejection = send_rejection
        self._dry_run = throttle.settings.control.dry_run

    def provisional(self, demand: Demand) -> Demand:
        """Return the demand of a request; a provisional one if its rejection may be replaced."""
        return demand if self._app.fallbacks is None else ProvisionalDemand.of(demand)

    @property
    def is_quiet(self) -> bool:
        """Whether `applies_to` has nothing to do and need not be awaited."""
        return self._app.is_quiet

    async def applies_to(self, scope: Scope, send: Send) -> bool:
        """Answer or reject a request that needs no limits; False: the limits must decide."""
        fallbacks = self._app.fallbacks
        action = DegradationAction.SERVE if fallbacks is None or self._dry_run else fallbacks.action(scope)
        if fallbacks is not None and action is not DegradationAction.SERVE:
            return await self._degrade(scope, send, fallbacks, action)
        guard_rejection = self._app.rejection()
        if guard_rejection is None:
            return False
        decision = rejected_by(guard_rejection)
        if self._dry_run:
            self._reject(scope, decision)
            return False
        answer: HttpAnswer | None = None
        try:
            if fallbacks is not None:
                failure = guard_rejection.cause.value, GuardRejected(guard_rejection)
                answer = await fallbacks.answer(scope, failure, fallbacks.cache_request(scope), action)
        finally:  # a cancelled fallback still counts as a rejection
            self._reject(scope, decision, degraded=answer is not None)
        if answer is not None:
            await send_answer(answer, scope, send)
        else:
            await self._send_rejection(scope, send, decision, guard_rejection.cause)
        return True

    async def replaces(self, scope: Scope, send: Send, rejection: Rejection) -> bool:
        """Answer in place of a rejection caused by our load, if a fallback has a response."""
        fallbacks = self._app.fallbacks
        if fallbacks is None or rejection.decision.reason not in REPLACEABLE:
            return False
        answer: HttpAnswer | None = None
        try:
            answer = await fallbacks.answer(
                scope, (LOAD, None), fallbacks.cache_request(scope), DegradationAction.SHED
            )
        finally:
            self._throttle.admission.record_rejection(rejection, degraded=answer is not None)
        if answer is not None:
            await send_answer(answer, scope, send)
        return answer is not None

    async def _degrade(
        self, scope: Scope, send: Send, fallbacks: AppFallbacks, action: DegradationAction
    ) -> bool:
        """Answer a request that the current load level does not serve."""
        answer = await fallbacks.answer(scope, (LOAD, None), fallbacks.cache_request(scope), action)
        if answer is not None:
            self._reject(scope, DEGRADED_DECISION, degraded=True)
            await send_answer(answer, scope, send)
        elif action is DegradationAction.SHED:
            decision = rejected_by(fallbacks.executor.reject_shed())
            self._reject(scope, decision)
            await self._send_rejection(scope, send, decision, LOAD)
        return answer is not None or action is DegradationAction.SHED

    def _reject(self, scope: Scope, decision: Decision, *, degraded: bool = False) -> None:
        """Count the decision made here, and store it in the scope for outer middleware."""
        rejection = self._throttle.admission.reject(self._demand(scope), decision, degraded=degraded)
        if rejection is not None:
            scope.setdefault(MARKER, {})[self._throttle] = rejection
