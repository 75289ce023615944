"""Applies the fallbacks of an app's feature to ASGI requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection
from autoglm_throttle.asgi.responses import rejected_by
from autoglm_throttle.asgi.scope import MARKER, Message, Scope, Send, attribution_of
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.drive import drive_async
from autoglm_throttle.resilience.fallback import ERROR, LOAD, UNSET, DegradationAction
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.cache import CacheRequest, mark_degraded
from autoglm_throttle.resilience.outcomes import FAILING_STATUSES
from autoglm_throttle.types import (
    Clock,
    Decision,
    Demand,
    FallbackContext,
    FallbackKind,
    GuardRejected,
    Outcome,
    Reason,
    Rejected,
)

if TYPE_CHECKING:
    from autoglm_throttle.asgi.app_breaker import AppBreaker, ResponseObserver
    from autoglm_throttle.resilience.http.answer import HttpAnswer
    from autoglm_throttle.resilience.http.cache import CachePolicy
    from autoglm_throttle.throttle import Throttle


class AppFallbacks:
    """The fallback of one app.

    Args:
        executor: the executor of the feature, with its degradation levels, fallbacks and cache.
        clock: monotonic seconds.
    """

    def __init__(self, executor: FeatureExecutor, clock: Clock) -> None:
        self.executor: FeatureExecutor = executor
        self.name: str = executor.feature.name
        self.log: RateLimitedLogger = RateLimitedLogger(self.name, clock)
        """Rate-limited log of the app errors that a fallback would otherwise hide."""

    def cache_request(self, scope: Scope) -> CacheRequest | None:
        """Build the cache request of a scope; None if it is not cacheable or the scope is broken."""
        responses = self.executor.responses
        if responses is None or scope["type"] != "http":
            return None
        try:
            headers = text_of(scope["headers"])
            return responses.request(scope["method"], _url(scope, headers), headers, scope)
        except Exception:  # noqa: BLE001 - a scope may hold anything
            return None

    def action(self, scope: Scope) -> DegradationAction:
        """Return the degradation action for a request."""
        responses = self.executor.responses
        return self.executor.action(
            lambda: responses is not None and responses.find(self.cache_request(scope)) is not None
        )

    async def answer(
        self,
        scope: Scope,
        failure: tuple[str, Exception | None],
        cache_request: CacheRequest | None,
        action: DegradationAction,
    ) -> HttpAnswer | None:
        """Answer without the app, marked as degraded and counted. Returns None if no fallback has a response.

        Args:
            scope: of the request; the only argument of a dynamic fallback.
            failure: the cause, and the exception raised.
            cache_request: the cache request.
            action: the degradation action; ``SERVE`` after a rejection or a failure.
        """
        if scope["type"] != "http":
            return None
        cause, error = failure
        context = FallbackContext(self.name, cause, error, (scope,))
        responses = self.executor.responses

        def lookup(cause: str) -> object:
            return UNSET if responses is None else responses.find_answer(cache_request, cause)

        try:
            answer = await drive_async(self.executor.chain.answer(context, lookup, action, _check_answer))
        except Exception:  # noqa: BLE001 - logged by the fallbacks; the original answer stands
            return None
        return None if answer is None else _sized(answer.value, answer.kind, cause)


def _check_answer(value: object, kind: FallbackKind) -> None:
    if not isinstance(value, HttpAnswer):
        raise TypeError(f"the {kind} fallback of HTTP must give an HttpAnswer, not {type(value).__name__}")


def text_of(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Decode the fields of a scope or a message as latin-1 text, which loses no byte."""
    return tuple((bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in headers)


def _url(scope: Scope, headers: Pairs) -> str:
    host = next((value for name, value in headers if name.lower() == "host"), "")
    path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query: bytes = scope.get("query_string") or b""
    return f"{scope.get('scheme', 'http')}://{host}{path.decode('latin-1')}?{query.decode('latin-1')}"


def _sized(answer: HttpAnswer, kind: FallbackKind, cause: str) -> HttpAnswer:
    """Add the Content-Length, which a server needs to keep the connection, and the degradation mark."""
    if kind is FallbackKind.STALE:  # marked already, and stored with its length
        return answer
    length = "content-length", str(len(answer.body))
    sized = any(name.lower() == length[0] for name, _ in answer.headers)
    return mark_degraded(answer if sized else answer.with_header(length), kind, cause)


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
        responses = self._fallbacks.executor.responses
        if self._cache_request is None or responses is None:
            return message
        headers = list(message.get("headers") or ())
        self._cache_policy = responses.policy(
            self._cache_request, message["status"], text_of(headers), self._observer.started_s
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
        return self._fallbacks.executor.replaces_status and await self._replace(ERROR, None, Outcome.FAILURE)

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
