"""Applies the fallbacks of an app's feature to ASGI requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit
from autoglm_throttle.asgi.scope import Message, Scope, Send, attribution_of
from autoglm_throttle.resilience.classify import FAILING_STATUSES
from autoglm_throttle.resilience.drive import drive_async
from autoglm_throttle.resilience.fallback import ERROR, LOAD, UNSET, DegradationAction
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.cache import mark_degraded
from autoglm_throttle.resilience.http.fields import members
from autoglm_throttle.types import FallbackContext, FallbackKind, GuardRejected, Outcome, Rejected

if TYPE_CHECKING:
    from autoglm_throttle.asgi.response_observer import ResponseObserver
    from autoglm_throttle.resilience.feature_executor import FeatureExecutor
    from autoglm_throttle.resilience.http.cache import CachePolicy, CacheRequest

# Outcomes after which a response may be cached.
CACHEABLE_OUTCOMES = frozenset({Outcome.SUCCESS, Outcome.SLOW})


def cache_request(executor: FeatureExecutor | None, scope: Scope) -> CacheRequest | None:
    """Build the cache request of a scope; None if it is not cacheable or the scope is broken."""
    if executor is None or executor.responses is None or scope["type"] != "http":
        return None
    try:
        headers = text_of(scope["headers"])
        return executor.responses.request(scope["method"], _url(scope, headers), headers, scope)
    except Exception:  # noqa: BLE001 - a scope may hold anything
        return None


def action(executor: FeatureExecutor, scope: Scope) -> DegradationAction:
    """Return the degradation action for a request."""
    cache = executor.responses
    return executor.action(
        lambda: cache is not None and cache.find(cache_request(executor, scope)) is not None
    )


async def answer(
    executor: FeatureExecutor,
    scope: Scope,
    request: CacheRequest | None,
    failure: tuple[str, Exception | None],
    action: DegradationAction = DegradationAction.SERVE,
) -> HttpAnswer | None:
    """Answer without the app, marked as degraded and counted. Returns None if no fallback has a response.

    The scope is the only argument of a dynamic fallback; the failure is the cause, and the exception raised.
    """
    if scope["type"] != "http":
        return None
    cause, error = failure
    context = FallbackContext(executor.feature.name, cause, error, (scope,))

    def lookup(cause: str) -> object:
        return UNSET if executor.responses is None else executor.responses.find_answer(request, cause)

    try:
        found = await drive_async(executor.answer(context, lookup, action, _check_answer))
    except Exception:  # noqa: BLE001 - logged by the fallbacks; the original answer stands
        return None
    return None if found is None else _sized(found.value, found.kind, cause)


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
    if not members(answer.headers, "content-length"):
        answer = answer.with_header(("content-length", str(len(answer.body))))
    return mark_degraded(answer, kind, cause)


class FallbackResponder:
    """Answers one request in the app's place if the app fails before its response has begun."""

    def __init__(
        self, executor: FeatureExecutor, permit: object, scope: Scope, observer: ResponseObserver
    ) -> None:
        self._executor = executor
        self._permit = permit
        self._scope = scope
        self._observer = observer
        self._cache_request = cache_request(executor, scope)
        self._cache_policy: CachePolicy | None = None
        self._remaining_bytes = 0
        self._replaced = False

    async def replaces(self, error: Exception | None, outcome: Outcome | None) -> bool:
        """Whether a fallback has answered, earlier or now, in place of an app that failed.

        Without an error the app returned without a response.
        """
        observer = self._observer
        if not self._replaced:
            cause = _cause(error, outcome)
            late = observer.started or observer.client_disconnected
            if late or not cause or not await self._replace(cause, error, outcome or Outcome.FAILURE):
                return False
        if error is not None and outcome is Outcome.FAILURE:  # the fallback would hide it
            text = "the app failed; a fallback answered instead"
            observer.guard_state.fault_log.warn("app", text, error=error)
        return True

    async def send(self, message: Message) -> None:
        """Pass a message of the app to the observer, unless a fallback answers in its place."""
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
        responses = self._executor.responses
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
        return self._executor.replaces_status and await self._replace(ERROR, None, Outcome.FAILURE)

    async def _replace(self, cause: str, error: Exception | None, outcome: Outcome) -> bool:
        action = DegradationAction.SHED if cause == LOAD else DegradationAction.SERVE
        found = await answer(self._executor, self._scope, self._cache_request, (cause, error), action)
        if found is None:
            return False
        # Settle first: a fallback's success must not be credited to the app.
        self._replaced = True
        settle(self._permit, outcome)
        await send_answer(found, self._scope, self._observer.forward)
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
    rejected = GuardRejected.find(error)
    if rejected is not None:
        return rejected.rejection.cause.value
    if isinstance(error, Rejected):
        return LOAD if error.decision.reason in REPLACEABLE else ""
    return ERROR if outcome is Outcome.FAILURE else ""
