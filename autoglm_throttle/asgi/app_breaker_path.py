"""Applies an app's breaker and fallbacks before the limits, and after they reject a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import ProvisionalDemand, Rejection
from autoglm_throttle.asgi.advice import MARKER
from autoglm_throttle.asgi.app_breaker import AppBreaker
from autoglm_throttle.asgi.fallback_responder import send_answer
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.fallback import LOAD
from autoglm_throttle.types import Decision, Demand, GuardRejected, Reason

if TYPE_CHECKING:
    from autoglm_throttle.asgi.app_fallbacks import AppFallbacks
    from autoglm_throttle.resilience.http.answer import HttpAnswer
    from autoglm_throttle.throttle import Throttle

Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

DEGRADED_DECISION = Decision(False, Reason.GPU, "gpu:degraded", "gpu")
"""Decision under which a request is counted if a degradation level answered instead of the app."""


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
