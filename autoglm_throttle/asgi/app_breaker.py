"""Circuit breaker around an app: admits requests to it and counts the outcome of its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import ProvisionalDemand, Rejection
from autoglm_throttle.asgi import app_fallbacks
from autoglm_throttle.asgi.app_fallbacks import FallbackResponder, send_answer, settle
from autoglm_throttle.asgi.response_observer import ResponseObserver
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.asgi.scope import App, Receive, Scope, Send, attribution_of, store_verdict, verdicts_of
from autoglm_throttle.resilience.fallback import LOAD, DegradationAction
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.types import (
    Decision,
    Demand,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    Reason,
)

if TYPE_CHECKING:
    from autoglm_throttle.asgi.tracing import Tracing
    from autoglm_throttle.resilience.state import GuardState
    from autoglm_throttle.throttle import Throttle

SendRejection = Callable[[Scope, Send, Decision, str], Awaitable[None]]

# Decision under which a request is counted if a degradation level answered instead of the app.
DEGRADED_DECISION = Decision(False, Reason.GPU, "gpu:degraded", "gpu")


@dataclass(eq=False)
class AppBreaker:
    """Stands between the limits and the app: queries the breaker and reports each request's outcome to it.

    Before any limit, `applies_to` and `replaces` answer requests that need no admission, by the state of the
    breaker and the degradation level. Such a request takes nothing from any limit. The guard permit is
    acquired after admission. In a dry run all requests are admitted, and rejections are only counted.
    """

    app: App
    _throttle: Throttle
    _name: str  # of the guard
    _send_rejection: SendRejection
    _guard_state: GuardState | None = None
    tracing: Tracing | None = None

    @property
    def _dry_run(self) -> bool:
        return self._throttle.settings.control.dry_run

    @property
    def guard_state(self) -> GuardState:
        """State of the app's guard, looked up late: its feature may be registered after the middleware."""
        if self._guard_state is None:
            self._guard_state = self._throttle.guard(self._name).circuit
        return self._guard_state

    @property
    def fallbacks(self) -> FeatureExecutor | None:
        """Executor of the fallbacks; None for an app that is core and has no fallback."""
        executor = self.guard_state.executor
        return executor if isinstance(executor, FeatureExecutor) else None

    @property
    def is_quiet(self) -> bool:
        """Whether the breaker is closed and the app has no fallback: `applies_to` need not be awaited."""
        return self.guard_state.fast.permit is not None and self.fallbacks is None

    def provisional(self, demand: Demand) -> Demand:
        """Return the demand of a request; a provisional one if its rejection may be replaced."""
        return demand if self.fallbacks is None else ProvisionalDemand.of(demand)

    async def applies_to(self, scope: Scope, send: Send, demand: Demand) -> bool:
        """Answer or reject a request that needs no limits; False: the limits must decide."""
        fallbacks, action = self.fallbacks, DegradationAction.SERVE
        if fallbacks is not None and not self._dry_run:
            action = app_fallbacks.action(fallbacks, scope)
            if action is not DegradationAction.SERVE:
                return await self._degrade(scope, send, demand, fallbacks, action)
        guard_state = self.guard_state
        guard_rejection = None if guard_state.fast.permit is not None else guard_state.rejection()
        if guard_rejection is None:
            return False
        decision = rejected_by(guard_rejection)
        if self._dry_run:
            self._count(scope, demand, decision)
            return False
        count, failure = partial(self._count, scope, demand, decision), GuardRejected(guard_rejection)
        if not await self._answer(scope, send, action, (guard_rejection.cause.value, failure), count):
            await self._send_rejection(scope, send, decision, guard_rejection.cause)
        return True

    async def replaces(self, scope: Scope, send: Send, rejection: Rejection) -> bool:
        """Answer in place of a rejection caused by our load, if a fallback has a response."""
        if self.fallbacks is None or rejection.decision.reason not in REPLACEABLE:
            return False
        count = partial(self._throttle.admission.record_rejection, rejection)
        return await self._answer(scope, send, DegradationAction.SHED, (LOAD, None), count)

    async def _answer(
        self,
        scope: Scope,
        send: Send,
        action: DegradationAction,
        failure: tuple[str, Exception | None],
        count: Callable[..., object] | None = None,
    ) -> bool:
        """Answer a rejected request by a fallback, and count it; False: no fallback has a response."""
        fallbacks, answer = self.fallbacks, None
        try:
            if fallbacks is not None:
                request = app_fallbacks.cache_request(fallbacks, scope)
                answer = await app_fallbacks.answer(fallbacks, scope, request, failure, action)
        finally:  # a cancelled fallback still counts as a rejection
            if count is not None:
                count(degraded=answer is not None)
        if answer is not None:
            if self.tracing is not None and count is not None:
                self.tracing.record(scope, degraded=True)
            await send_answer(answer, scope, send)
        return answer is not None

    async def _degrade(
        self, scope: Scope, send: Send, demand: Demand, fallbacks: FeatureExecutor, action: DegradationAction
    ) -> bool:
        request = app_fallbacks.cache_request(fallbacks, scope)
        answer = await app_fallbacks.answer(fallbacks, scope, request, (LOAD, None), action)
        if answer is not None:
            self._count(scope, demand, DEGRADED_DECISION, degraded=True)
            if self.tracing is not None:
                self.tracing.record(scope, degraded=True)
            await send_answer(answer, scope, send)
        elif action is DegradationAction.SHED:
            decision = rejected_by(fallbacks.reject_shed())
            self._count(scope, demand, decision)
            await self._send_rejection(scope, send, decision, LOAD)
        return answer is not None or action is DegradationAction.SHED

    def _count(self, scope: Scope, demand: Demand, decision: Decision, *, degraded: bool = False) -> None:
        """Count the decision made here, and store it in the scope for outer middleware."""
        rejection = self._throttle.admission.reject(demand, decision, degraded=degraded)
        if rejection is not None:
            store_verdict(scope, self._throttle, rejection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        permit = verdicts_of(scope).get(self._throttle)
        if permit is None or scope["type"] not in {"http", "websocket"}:  # no request, or exempt
            await self.app(scope, receive, send)
            return
        fallbacks, guard_state, root_path = self.fallbacks, self.guard_state, scope.get("root_path")
        guard_permit = self._closed_permit() or await guard_state.allow_async()
        if isinstance(guard_permit, GuardRejection):
            await self._reject(guard_permit, scope, receive, send)
            return
        observer = ResponseObserver(
            guard_state, guard_permit, attribution_of(scope), send, receive, guard_state.clock()
        )
        responder = None if fallbacks is None else FallbackResponder(fallbacks, permit, scope, observer)
        try:
            await self.app(scope, observer.receive, observer.send if responder is None else responder.send)
        except Exception as error:
            # A mount inside the app has changed the root path, by which the rejection's path is read.
            if not await self._handle_error(error, observer, responder, {**scope, "root_path": root_path}):
                raise
        except BaseException as error:
            observer.on_exception(error)
            raise
        else:
            outcome = not observer.settled and observer.on_return(websocket=scope["type"] == "websocket")
            if outcome is Outcome.FAILURE and responder is not None:
                await responder.replaces(None, outcome)

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
        rejected = GuardRejected.find(error)
        if observer.started or rejected is None:
            return False
        # The inner guard's rejection is no evidence about this app: settle before sending it.
        settle(verdicts_of(scope)[self._throttle], Outcome.NEUTRAL)
        decision = rejected_by(rejected.rejection)
        await self._send_rejection(scope, observer.forward, decision, rejected.rejection.cause)
        return True

    async def _reject(self, rejection: GuardRejection, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject an admitted request because of the breaker; this says nothing about the service's health."""
        if self._dry_run:
            await self.app(scope, receive, send)
            return
        settle(verdicts_of(scope)[self._throttle], Outcome.NEUTRAL)
        failure = rejection.cause.value, GuardRejected(rejection)
        if not await self._answer(scope, send, DegradationAction.SERVE, failure):
            await self._send_rejection(scope, send, rejected_by(rejection), rejection.cause)
