"""The breaker round an app: what passes it, and what the answers of the app say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from autoglm_throttle.asgi.answers import refused_by
from autoglm_throttle.asgi.blame import blame_of
from autoglm_throttle.asgi.deputy import Deputy, give, settle
from autoglm_throttle.asgi.fallbacks import Fallbacks
from autoglm_throttle.asgi.hinted import MARKER
from autoglm_throttle.asgi.watched import Watched
from autoglm_throttle.model import Decision, GuardRefused, Outcome, Pass, Refusal
from autoglm_throttle.resilience.served import Served

if TYPE_CHECKING:
    from autoglm_throttle.resilience.circuit import Circuit
    from autoglm_throttle.throttle import Throttle

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
Refuse = Callable[[Scope, Send, Decision, str], Awaitable[None]]


class AppGuard:
    """Stands before an app, behind the limits: asks the breaker, and tells it what became of each request.

    Args:
        app: what is guarded.
        throttle: whose guard it is.
        name: of the guard.
        refuse: answers a refused request.
    """

    def __init__(self, app: App, throttle: Throttle, name: str, refuse: Refuse) -> None:
        self.app = app
        self._throttle = throttle
        self._name = name
        self._refuse = refuse
        self._circuit: Circuit | None = None
        self._fallbacks: Fallbacks | None = None

    @property
    def circuit(self) -> Circuit:
        """The guard's."""
        return self._circuit or self._begin()

    @property
    def fallbacks(self) -> Fallbacks | None:
        """What answers in the app's place; None for an app that is core and has no fallback."""
        if self._circuit is None:
            self._begin()
        return self._fallbacks

    @property
    def quiet(self) -> bool:
        """Whether a request is let through as things are, and nobody could answer it but the app."""
        return self.circuit.breaker.fast is not None and self._fallbacks is None

    def refusal(self) -> Refusal | None:
        """What the breaker would refuse a request with now; free of effects."""
        circuit = self.circuit
        return None if circuit.breaker.fast is not None else circuit.refuses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        permit = (scope.get(MARKER) or {}).get(self._throttle)
        if permit is None or scope["type"] not in {"http", "websocket"}:  # no request, or an exempt one
            await self.app(scope, receive, send)
            return
        fallbacks = self.fallbacks
        deputy = Deputy(fallbacks, permit, scope) if fallbacks is not None else None
        pass_ = self._fast() or await self.circuit.enter_async()
        if isinstance(pass_, Refusal):
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

    def _begin(self) -> Circuit:
        """Ask for the guard with the first request, as its feature may be told after the middleware."""
        circuit = self._throttle.guard(self._name).circuit
        served = circuit.served
        if isinstance(served, Served) and served.http is not None:
            self._fallbacks = Fallbacks(served.http, circuit.clock)
        self._circuit = circuit
        return circuit

    def _fast(self) -> Pass | None:
        """The pass that a closed breaker has for all, where no fleet has a say."""
        circuit = self.circuit
        core = circuit.breaker
        pass_ = core.fast
        if pass_ is None or circuit.store is not None:
            return None
        core.calls += 1
        return pass_

    async def _made_good(
        self, error: Exception, watched: Watched, deputy: Deputy | None, scope: Scope
    ) -> bool:
        """Settle for an app that has raised, and answer in its place if that can be done."""
        outcome = watched.raised(error)
        if deputy is not None and await deputy.stands_in_for(error, outcome):
            return True
        if watched.started or not isinstance(error, GuardRefused):
            return False
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        await self._refuse(scope, watched.pass_on, refused_by(error.refusal), error.refusal.cause)
        return True

    async def _refused(
        self, refusal: Refusal, deputy: Deputy | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Turn away who was admitted before the breaker opened, which says nothing about the service."""
        if self._throttle.settings.dry_run:
            await self.app(scope, receive, send)
            return
        settle(scope[MARKER][self._throttle], Outcome.NEUTRAL)
        answer = None if deputy is None else await deputy.answer(refusal.cause, GuardRefused(refusal))
        if answer is None:
            await self._refuse(scope, send, refused_by(refusal), refusal.cause)
        else:
            await give(answer, scope, send)
