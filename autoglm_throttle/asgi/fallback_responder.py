"""Fallbacks for one request: caches the app's response, or replaces it before it has begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.app_fallbacks import AppFallbacks, Scope, text_of
from autoglm_throttle.asgi.failure_attribution import attribution_of
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.fallback import ERROR, LOAD
from autoglm_throttle.resilience.outcome_classifier import FAILING_STATUSES
from autoglm_throttle.types import GuardRejected, Outcome, Rejected

if TYPE_CHECKING:
    from autoglm_throttle.asgi.response_observer import ResponseObserver
    from autoglm_throttle.resilience.http.answer import HttpAnswer
    from autoglm_throttle.resilience.http.body import CachePolicy

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]

CACHEABLE_OUTCOMES = frozenset({Outcome.SUCCESS, Outcome.SLOW})
"""Outcomes after which a response may be cached."""


class FallbackResponder:
    """Answers one request in the app's place if the app fails before its response has begun.

    Args:
        fallbacks: the fallbacks of the app, and their cache.
        permit: settled before a fallback is sent; its success must not be credited to the app.
        scope: of the request.
    """

    __slots__ = (
        "_cache_policy",
        "_cache_request",
        "_fallbacks",
        "_observer",
        "_permit",
        "_remaining_bytes",
        "_replaced",
        "_scope",
    )

    _observer: ResponseObserver

    def __init__(self, fallbacks: AppFallbacks, permit: object, scope: Scope) -> None:
        self._fallbacks = fallbacks
        self._permit = permit
        self._scope = scope
        self._cache_request = fallbacks.cache_request(scope)
        self._cache_policy: CachePolicy | None = None
        self._remaining_bytes = 0
        self._replaced = False

    def bind(self, observer: ResponseObserver) -> Send:
        """Return the app's ``send``, which passes each message to the observer first."""
        self._observer = observer
        return self._send

    async def answer(self, cause: str, error: Exception | None) -> HttpAnswer | None:
        """Return the response of the fallbacks, or None if they have none."""
        action = DegradationAction.SHED if cause == LOAD else DegradationAction.SERVE
        return await self._fallbacks.answer(self._scope, (cause, error), self._cache_request, action)

    async def replaces(self, error: Exception | None, outcome: Outcome | None) -> bool:
        """Whether a fallback has answered, earlier or now, in place of an app that failed.

        Args:
            error: the exception; None: the app returned without a response.
            outcome: how the app's failure counts; among neutral outcomes only rejections are replaced.
        """
        if not self._replaced:
            cause = _cause(error, outcome)
            late = self._observer.started or self._observer.client_disconnected
            if late or not cause or not await self._replace(cause, error, outcome or Outcome.FAILURE):
                return False
        if error is not None and outcome is Outcome.FAILURE:
            self._fallbacks.log.warn("app", "the app failed; a fallback answered instead", error=error)
        return True

    async def _send(self, message: Message) -> None:
        if self._replaced:
            return
        observer = self._observer
        observer.inspect(message)
        if message["type"] == "http.response.start":
            if message["status"] in FAILING_STATUSES and await self._replace_failing_status():
                return
            message = self._start(message)
        elif self._cache_policy is not None:
            self._collect_part(message, self._cache_policy)
        await observer.forward(message)

    def _start(self, message: Message) -> Message:
        """Decide whether the response may be cached. Headers may be readable only once: copy them."""
        if self._cache_request is None:
            return message
        headers = list(message.get("headers") or ())
        executor, started_s = self._fallbacks.executor, self._observer.started_s
        self._cache_policy = executor.cache_policy(
            self._cache_request, message["status"], text_of(headers), started_s
        )
        if self._cache_policy is not None:
            self._remaining_bytes = self._cache_policy.max_body_bytes
        return {**message, "headers": headers}

    def _collect_part(self, message: Message, cache_policy: CachePolicy) -> None:
        """Collect a part of the body, and cache the whole body after a successful end."""
        body = message.get("body", b"")
        self._remaining_bytes -= len(body)
        if message["type"] != "http.response.body" or self._remaining_bytes < 0:
            self._cache_policy = None
            return
        cache_policy.parts.append(bytes(body))
        if not message.get("more_body"):
            self._cache_policy = None
            if self._observer.outcome in CACHEABLE_OUTCOMES:
                cache_policy.put(b"".join(cache_policy.parts))

    async def _replace_failing_status(self) -> bool:
        attribution = attribution_of(self._scope)
        if attribution.by_throttle:
            return bool(attribution.cause) and await self._replace(attribution.cause, None, Outcome.NEUTRAL)
        return self._fallbacks.executor.on_value and await self._replace(ERROR, None, Outcome.FAILURE)

    async def _replace(self, cause: str, error: Exception | None, outcome: Outcome) -> bool:
        answer = await self.answer(cause, error)
        if answer is None:
            return False
        # Settle first: a fallback's success must not be credited to the app.
        self._replaced = True
        settle(self._permit, outcome)
        await send_answer(answer, self._scope, self._observer.forward)
        return True


def settle(permit: object, outcome: Outcome) -> None:
    """Settle a permit unless it is settled already."""
    if isinstance(permit, Permit) and not permit.settled:
        permit.settle(outcome)


async def send_answer(answer: HttpAnswer, scope: Scope, send: Send) -> None:
    """Send a whole response; for HEAD only its fields."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})


def _cause(error: Exception | None, outcome: Outcome | None) -> str:
    """Return the cause of a fallback; empty if no fallback may answer this error."""
    if isinstance(error, GuardRejected):
        return error.rejection.cause.value
    if isinstance(error, Rejected):
        return LOAD if error.decision.reason in REPLACEABLE else ""
    return ERROR if outcome is Outcome.FAILURE else ""
