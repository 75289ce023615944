"""Applies the fallbacks of an app's feature to ASGI requests."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from autoglm_throttle.events.rate_limited_logger import RateLimitedLogger
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.caching_rules import CacheRequest, mark_degraded
from autoglm_throttle.resilience.http.feature_executor import HttpFeatureExecutor
from autoglm_throttle.types import Clock, FallbackContext, FallbackKind

Scope = MutableMapping[str, Any]


class AppFallbacks:
    """The fallback of one app.

    Args:
        executor: the executor of the feature, with its degradation levels, fallbacks and cache.
        clock: monotonic seconds.
    """

    def __init__(self, executor: HttpFeatureExecutor, clock: Clock) -> None:
        self.executor: HttpFeatureExecutor = executor
        self.name: str = executor.feature.name
        self.log: RateLimitedLogger = RateLimitedLogger(self.name, clock)
        """Rate-limited log of the app errors that a fallback would otherwise hide."""

    def cache_request(self, scope: Scope) -> CacheRequest | None:
        """Build the cache request of a scope; None if it is not cacheable or the scope is broken."""
        if scope["type"] != "http":
            return None
        try:
            headers = text_of(scope["headers"])
            return self.executor.cache_request(scope["method"], _url(scope, headers), headers, scope, None)
        except Exception:  # noqa: BLE001 - a scope may hold anything
            return None

    def action(self, scope: Scope) -> DegradationAction:
        """Return the degradation action for a request."""
        return self.executor.action(self.cache_request(scope))

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
        try:
            fallback_answer = await self.executor.answer_async(context, cache_request, action)
        except Exception:  # noqa: BLE001 - logged by the fallbacks; the original answer stands
            return None
        if fallback_answer is None:
            return None
        if isinstance(fallback_answer.value, HttpAnswer):
            return _sized(fallback_answer.value, fallback_answer.kind, cause)
        kind = type(fallback_answer.value).__name__
        self.log.warn("kind", f"the {fallback_answer.kind} fallback must give an HttpAnswer, not {kind}")
        return None


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
    if kind is FallbackKind.STALE:  # marked already; for HEAD the length must be the app's
        return answer
    length = "content-length", str(len(answer.body))
    sized = any(name.lower() == length[0] for name, _ in answer.headers)
    return mark_degraded(answer if sized else answer.with_header(length), kind, cause)
