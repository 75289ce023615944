"""What a breaker and its feature's fallbacks do before the limits are asked, and after they have refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.asgi.answers import refused_by
from autoglm_throttle.asgi.app_guard import AppGuard
from autoglm_throttle.asgi.deputy import give
from autoglm_throttle.asgi.hinted import MARKER
from autoglm_throttle.model import Decision, Demand, GuardRefused, Reason
from autoglm_throttle.permit import Provisional, Rejection
from autoglm_throttle.resilience.degradation import Choice
from autoglm_throttle.resilience.fallback import LOAD
from autoglm_throttle.snapshot import REPLACEABLE

if TYPE_CHECKING:
    from autoglm_throttle.asgi.fallbacks import Fallbacks
    from autoglm_throttle.resilience.http.answer import HttpAnswer
    from autoglm_throttle.throttle import Throttle

Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

SPARED = Decision(False, Reason.GPU, "gpu:degraded", "gpu")
"""How a request is counted that the ladder of degradation has answered instead of the app."""


class Guarded:
    """Keeps from the limits what need not be admitted, as the breaker or the ladder of degradation says.

    Such a request takes nothing from any limit. The pass itself is taken by the `AppGuard`, after the
    admission. In a dry run all are let in, and what the breaker would refuse is counted.

    Args:
        throttle: counts what is decided here.
        app: with the breaker round it.
        demand: says what a request asks for.
        answer: answers a request that is refused, with a decision and a cause.
    """

    def __init__(
        self,
        throttle: Throttle,
        app: AppGuard,
        demand: Callable[[Scope], Demand],
        answer: Callable[[Scope, Send, Decision, str], Awaitable[None]],
    ) -> None:
        self._throttle = throttle
        self._app = app
        self._demand = demand
        self._answer = answer
        self._dry_run = throttle.settings.dry_run

    def demand(self, scope: Scope) -> Demand:
        """What a request asks for, on the terms that its refusal may be replaced."""
        demand = self._demand(scope)
        return demand if self._app.fallbacks is None else Provisional.of(demand)

    @property
    def quiet(self) -> bool:
        """Whether `deals_with` has nothing to do, which need not be awaited then."""
        return self._app.quiet

    async def deals_with(self, scope: Scope, send: Send) -> bool:
        """Answer or refuse a request that the limits need not see; False: they must."""
        fallbacks = self._app.fallbacks
        choice = Choice.SERVE if fallbacks is None or self._dry_run else fallbacks.choice(scope)
        if fallbacks is not None and choice is not Choice.SERVE:
            return await self._spares(scope, send, fallbacks, choice)
        refusal = self._app.refusal()
        if refusal is None:
            return False
        decision = refused_by(refusal)
        if self._dry_run:
            self._turn_away(scope, decision)
            return False
        answer: HttpAnswer | None = None
        try:
            if fallbacks is not None:
                why = refusal.cause.value, GuardRefused(refusal)
                answer = await fallbacks.answer(scope, why, fallbacks.ask(scope), choice)
        finally:
            self._turn_away(scope, decision, degraded=answer is not None)
        if answer is not None:
            await give(answer, scope, send)
        else:
            await self._answer(scope, send, decision, refusal.cause)
        return True

    async def replaces(self, scope: Scope, send: Send, rejection: Rejection) -> bool:
        """Answer in place of a refusal for our load, if there is something to answer with."""
        fallbacks = self._app.fallbacks
        if fallbacks is None or rejection.decision.reason not in REPLACEABLE:
            return False
        answer: HttpAnswer | None = None
        try:
            answer = await fallbacks.answer(scope, (LOAD, None), fallbacks.ask(scope), Choice.SHED)
        finally:
            self._throttle.turned_away(rejection, degraded=answer is not None)
        if answer is not None:
            await give(answer, scope, send)
        return answer is not None

    async def _spares(self, scope: Scope, send: Send, fallbacks: Fallbacks, choice: Choice) -> bool:
        """Answer what the service has no load to spare for."""
        answer = await fallbacks.answer(scope, (LOAD, None), fallbacks.ask(scope), choice)
        if answer is not None:
            self._turn_away(scope, SPARED, degraded=True)
            await give(answer, scope, send)
        elif choice is Choice.SHED:
            decision = refused_by(fallbacks.served.shed())
            self._turn_away(scope, decision)
            await self._answer(scope, send, decision, LOAD)
        return answer is not None or choice is Choice.SHED

    def _turn_away(self, scope: Scope, decision: Decision, *, degraded: bool = False) -> None:
        """Count what was decided here, and leave word of it for those further out."""
        rejection = self._throttle.turn_away(self._demand(scope), decision, degraded=degraded)
        if rejection is not None:
            scope.setdefault(MARKER, {})[self._throttle] = rejection
