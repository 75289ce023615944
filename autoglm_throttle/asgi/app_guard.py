"""Circuit breaker around an app: admits requests to it and counts the outcome of its responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.asgi.answers import refused_by
from autoglm_throttle.asgi.blame import blame_of
from autoglm_throttle.asgi.deputy import Deputy, give, settle
from autoglm_throttle.asgi.fallbacks import Fallbacks
from autoglm_throttle.asgi.hinted import MARKER
from autoglm_throttle.asgi.watched import Watched
from autoglm_throttle.model import Decision, GuardPermit, GuardRejected, GuardRejection, Outcome
from autoglm_throttle.resilience.served import FeatureExecutor

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import GuardState
    from autoglm_throttle.throttle import Throttle

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Refuse = Callable[[Scope, Send, Decision, str], Awaitable[None]]


class AppGuard:
    """Stands between the limits and the app: queries the breaker and reports each request's outcome to it.

    Args:
        app: the guarded app.
        throttle: the owner of the guard.
        name: of the guard.
        refuse: sends the response of a rejected request.
    """

    def __init__(self, app: App, throttle: Throttle, name: str, refuse: Refuse) -> None:
        self.app = app
        self._throttle = throttle
        self._name = name
        self._refuse = refuse
        self._circuit: GuardState | None = None
        self._fallbacks: Fallbacks | None = None

    @property
    def circuit(self) -> GuardState:
        """State of the app's guard."""
        return self._circuit or self._begin()

    @property
    def fallbacks(self) -> Fallbacks | None:
        """Fallbacks that replace the app; None for an app that is core and has no fallback."""
        if self._circuit is None:
            self._begin()
        return self._fallbacks

    @property
    def quiet(self) -> bool:
        """Whether the breaker is closed and the app has no fallback."""
        return self.circuit.breaker.fast_permit is not None and self._fallbacks is None

    def refusal(self) -> GuardRejection | None:
        """Return the rejection that the breaker would give now, or None; free of effects."""
        circuit = self.circuit
        return None if circuit.breaker.fast_permit is not None else circuit.rejection()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        permit = (scope.get(MARKER) or {}).get(self._throttle)
        if permit is None or scope["type"] not in {"http", "websocket"}:  # no request, or exempt
            await self.app(scope, receive, send)
            return
        fallbacks = self.fallbacks
        deputy = Deputy(fallbacks, permit, scope) if fallbacks is not None else None
        pass_ = self._fast() or await self.circuit.allow_async()
        if isinstance(pass_, GuardRejection):
            await self._refused(pass_, deputy, scope, receive, send)
            return
        watched = Watched(self.circuit, pass_, blame_of(scope), send, receive)
        try:
            await self.app(scope, watched.receive, watched.send if deputy is None else deputy.on(watched))
        except Exception as error:
            if not await self._made_good(error, watched, deputy, scope):
                raise
        except BaseException as error:
            watched.raised(error)
            raise
        else:
            ended = not watched.settled and watched.returned(websocket=scope["type"] == "websocket")
            if ended is Outcome.FAILURE and deputy is not None:
                await deputy.stands_in_for(None, ended)

    def _begin(self) -> GuardState:
        """Look up the guard at the first request: its feature may be registered after the middleware."""
        circuit = self._throttle.guard(self._name).circuit
        served = circuit.executor
        if isinstance(served, FeatureExecutor) and served.http is not None:
            self._fallbacks = Fallbacks(served.http, circuit.clock)
        self._circuit = circuit
        return circuit

    def _fast(self) -> GuardPermit | None:
        """Return the shared permit of a closed breaker, or None if a fleet shares the breaker."""
        circuit = self.circuit
        core = circuit.breaker
        pass_ = core.fast_permit
        if pass_ is None or circuit.store is not None:
            return None
        core.calls += 1  # the shared permit bypasses the breaker's enter(), which counts calls
        return pass_

    async def _made_good(
        self, error: Exception, watched: Watched, deputy: Deputy | None, scope: Scope
    ) -> bool:
        """Settle for an app that raised, and answer in its place if possible."""
        outcome = watched.raised(error)
        if deputy is not None and await deputy.stands_in_for(error, outcome):
            return True
        if watched.started or not isinstance(error, GuardRejected):
            return False
        # The inner guard's rejection is no evidence about this app: settle before sending it.
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        await self._refuse(scope, watched.pass_on, refused_by(error.rejection), error.rejection.cause)
        return True

    async def _refused(
        self, refusal: GuardRejection, deputy: Deputy | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Reject an admitted request because of the breaker; this says nothing about the service's health."""
        if self._throttle.settings.dry_run:
            await self.app(scope, receive, send)
            return
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        answer = None if deputy is None else await deputy.answer(refusal.cause, GuardRejected(refusal))
        if answer is None:
            await self._refuse(scope, send, refused_by(refusal), refusal.cause)
        else:
            await give(answer, scope, send)
