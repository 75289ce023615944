"""A feature's fallbacks for HTTP callers, with a cache that follows the rules of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.resilience.degradation import DegradationAction
from autoglm_throttle.resilience.fallback import (
    ERROR,
    LOAD,
    REFRESH,
    DegradedCallback,
    FallbackAnswer,
    FallbackChain,
    ValueCheck,
)
from autoglm_throttle.resilience.feature import UNSET, Feature
from autoglm_throttle.resilience.http.answer import HttpAnswer, Pairs
from autoglm_throttle.resilience.http.caching_rules import CachedResponse, CacheRequest, varies_by
from autoglm_throttle.resilience.http.feature_cache import HttpFeatureCache
from autoglm_throttle.resilience.single_flight import SingleFlight
from autoglm_throttle.types import (
    BreakerCause,
    DegradationLevel,
    FallbackContext,
    FallbackKind,
    GuardRejected,
    GuardRejection,
    Outcome,
)

if TYPE_CHECKING:
    from autoglm_throttle.resilience.degradation_controller import DegradationController
    from autoglm_throttle.resilience.guard_state import GuardState
    from autoglm_throttle.resilience.http.body import CachePolicy
    from autoglm_throttle.resilience.http.cache import HttpCache
    from autoglm_throttle.resilience.http.feature_cache import CacheKey


def check_http_answer(value: object, fallback_kind: FallbackKind) -> None:
    """Accept only an `HttpAnswer`, which every HTTP caller can send.

    Args:
        value: of a fallback.
        fallback_kind: of that fallback.

    Raises:
        TypeError: any other type.
    """
    if not isinstance(value, HttpAnswer):
        raise TypeError(
            f"the {fallback_kind} fallback of HTTP must give an HttpAnswer, not {type(value).__name__}"
        )


@dataclass(frozen=True, slots=True)
class HttpCallResult:
    """Result of one live call, for all callers that waited for it."""

    request: CacheRequest
    response: object
    """For the caller that made the call only; None: it raised."""
    cached: CachedResponse | None = None
    """For the other callers; None: nothing may be shared."""
    error: Exception | None = None
    outcome: Outcome = Outcome.NEUTRAL
    caller_timed_out: bool = False
    """Whether the caller's own time limit ended, which the others do not share."""
    trace: TracebackType | None = None
    """Traceback of the exception; each caller that raises it again starts with this one."""

    def cached_for(self, cache_request: CacheRequest) -> CachedResponse | None:
        """Return the response if it answers this request too, else None."""
        lookup = self.cached
        if lookup is None:
            return None
        names = varies_by(lookup.answer.headers) or ()
        return lookup if cache_request.vary_key(names) == self.request.vary_key(names) else None


class HttpFeatureExecutor:
    """Answers in place of one feature's HTTP calls.

    Args:
        circuit: the guard of the same name.
        feature: declares the fallbacks.
        degradation: the level of the process; the feature is registered there.
        cache: of this feature only; None: nothing is cached.
        on_degraded: called with each degraded answer.
        fallback_timeout_s: time limit of an asynchronous dynamic fallback in seconds; None: no limit.
        max_stale_s: seconds beyond its lifetime for which a cached response is used, unless the response or
            the feature declares it.
    """

    __slots__ = (
        "_circuit",
        "_degradation",
        "_fallback_chain",
        "_on_degraded",
        "cache",
        "feature",
        "single_flight",
    )

    def __init__(  # noqa: PLR0913 - its parts
        self,
        circuit: GuardState,
        feature: Feature,
        degradation: DegradationController,
        *,
        cache: HttpCache | None,
        on_degraded: DegradedCallback,
        fallback_timeout_s: float | None,
        max_stale_s: float,
    ) -> None:
        log = RateLimitedLogger(feature.name, circuit.clock)
        fallback = feature.fallback
        self.feature: Feature = feature
        self.single_flight: SingleFlight[HttpCallResult] = SingleFlight(
            lambda call_result: not call_result.caller_timed_out
        )
        """Live calls that other callers may share."""
        self._circuit = circuit
        self._degradation = degradation
        self._on_degraded = on_degraded
        self._fallback_chain = FallbackChain(feature, on_degraded, fallback_timeout_s, log)
        self.cache: HttpFeatureCache | None = None
        """Cached responses; None: nothing is cached."""
        if cache is not None and fallback is not None and fallback.stale:
            self.cache = HttpFeatureCache(fallback, cache, max_stale_s, circuit.clock, log)

    def __repr__(self) -> str:
        return f"<HttpFeatureExecutor {self.feature.name!r} {self._degradation!r} {self.cache or 'no cache'}>"

    @property
    def on_value(self) -> bool:
        """Whether a failing status is replaced too."""
        fallback = self.feature.fallback
        return fallback is not None and fallback.on_value is not False

    def cache_request(
        self, method: str, url: str, headers: Pairs, request: object, key: CacheKey | None
    ) -> CacheRequest | None:
        """Return the cache request of an HTTP request; None: it is not cached.

        Args:
            method: in upper case.
            url: without a fragment.
            headers: of the request.
            request: passed to the key function.
            key: the caller's key function; None: that of the fallback, if any.
        """
        return None if self.cache is None else self.cache.request(method, url, headers, request, key)

    def action(self, cache_request: CacheRequest | None) -> DegradationAction:
        """Return the action for a call under the current load."""
        if self._degradation.level() is DegradationLevel.FULL and self.feature.shed_above is None:
            return DegradationAction.SERVE
        return self._degradation.action(self.feature, self._find(cache_request) is not None)

    def may_share(self, cache_request: CacheRequest | None) -> bool:
        """Whether this request may wait for a call in flight."""
        cache = self.cache
        if cache is None or cache_request is None or not self._coalesces():
            return False
        return cache_request.is_cacheable and not cache.is_unshareable(cache_request)

    def cached_answer(self, cache_request: CacheRequest) -> HttpAnswer | None:
        """Return the cached response and count it; used while another caller fetches a newer one."""
        cached = self._find(cache_request)
        if cached is None:
            return None
        self._on_degraded(self.feature.name, FallbackKind.STALE, REFRESH)
        return cached.as_fallback(self._circuit.clock(), REFRESH)

    def load_context(self, request: object) -> FallbackContext:
        """Return the fallback context of a call not made because of the load."""
        return FallbackContext(self.feature.name, LOAD, None, (request,))

    def failure_context(
        self, request: object, error: Exception | None, outcome: Outcome
    ) -> FallbackContext | None:
        """Return the fallback context of a rejection or a failure; None: no fallback may replace the result.

        Args:
            request: passed to a dynamic fallback.
            error: the exception; None: a failing status was received.
            outcome: of the call, as recorded.
        """
        if isinstance(error, GuardRejected):
            cause = error.rejection.cause.value
        elif outcome is Outcome.FAILURE and (error is not None or self.on_value):
            cause = ERROR
        else:
            return None
        return FallbackContext(self.feature.name, cause, error, (request,))

    def answer(
        self,
        context: FallbackContext,
        cache_request: CacheRequest | None,
        action: DegradationAction = DegradationAction.SERVE,
        check: ValueCheck = check_http_answer,
    ) -> FallbackAnswer | None:
        """Answer without the call, as `FallbackChain.answer` does.

        Args:
            context: cause and error; passed to a dynamic fallback.
            cache_request: of the call.
            action: from the degradation level; ``SERVE`` after a rejection or a failure.
            check: accepts values that the caller can send.
        """
        lookup = partial(self._cached_value, cache_request, context.cause)
        return self._fallback_chain.answer(context, lookup, action, check)

    async def answer_async(
        self,
        context: FallbackContext,
        cache_request: CacheRequest | None,
        action: DegradationAction = DegradationAction.SERVE,
        check: ValueCheck = check_http_answer,
    ) -> FallbackAnswer | None:
        """Answer without the call, as `FallbackChain.answer_async` does."""
        lookup = partial(self._cached_value, cache_request, context.cause)
        return await self._fallback_chain.answer_async(context, lookup, action, check)

    def reject_shed(self) -> GuardRejection:
        """Return the rejection of a shed call, and count it."""
        self._on_degraded(self.feature.name, FallbackKind.SHED, LOAD)
        after_s = self._degradation.retry_after_s
        return GuardRejection(self.feature.name, self._circuit.state(), BreakerCause.SHED, after_s)

    def cache_policy(
        self, cache_request: CacheRequest | None, status: int, headers: Pairs, requested_s: float
    ) -> CachePolicy | None:
        """Return the destination of a body, or None if the response must not be stored.

        Args:
            cache_request: the request.
            status: of the response.
            headers: of the response.
            requested_s: monotonic seconds at which the request was sent.
        """
        cache = self.cache
        if cache_request is None or cache is None:
            return None
        return cache.policy(cache_request, status, headers, requested_s)

    def _coalesces(self) -> bool:
        fallback = self.feature.fallback
        always = fallback is not None and fallback.coalesce == "always"
        return always or self._degradation.level() >= DegradationLevel.STALE

    def _cached_value(self, cache_request: CacheRequest | None, cause: str) -> object:
        cached = self._find(cache_request)
        return UNSET if cached is None else cached.as_fallback(self._circuit.clock(), cause)

    def _find(self, cache_request: CacheRequest | None) -> CachedResponse | None:
        cache = self.cache
        return None if cache_request is None or cache is None else cache.find(cache_request)
