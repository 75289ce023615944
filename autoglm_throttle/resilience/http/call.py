"""One guarded HTTP call without the waiting: shared by the sync and the async transport."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from autoglm_throttle.resilience.http.body import BodyObserver
from autoglm_throttle.resilience.http.caching_rules import CacheRequest, cached_response
from autoglm_throttle.resilience.http.feature_executor import HttpCallResult
from autoglm_throttle.resilience.http.fields import body_bytes, retry_after_s
from autoglm_throttle.resilience.outcomes import status_outcome
from autoglm_throttle.types import GuardPermit, Outcome, TooManyRequestsMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from autoglm_throttle.resilience.guard_state import GuardState
    from autoglm_throttle.resilience.http.answer import Pairs
    from autoglm_throttle.resilience.http.feature_cache import CacheKey
    from autoglm_throttle.resilience.http.feature_executor import HttpFeatureExecutor

SWITCHING_PROTOCOLS: Final = 101
"""After status 101 the connection is no longer HTTP, so no body follows."""

TOO_MANY_REQUESTS: Final = 429


def pairs(headers: httpx.Headers) -> Pairs:
    """Return header fields as text without loss of bytes."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


class HttpCall:
    """One call.

    Args:
        circuit: of the guard.
        executor: of the fallbacks; None: there are none.
        request: to send.
        key: the transport's function for the cache key.
    """

    __slots__ = (
        "begun_s",
        "body_observer",
        "cache_request",
        "circuit",
        "executor",
        "is_short",
        "outcome",
        "permit",
        "request",
    )

    def __init__(
        self,
        circuit: GuardState,
        executor: HttpFeatureExecutor | None,
        request: httpx.Request,
        key: CacheKey | None,
    ) -> None:
        self.circuit: GuardState = circuit
        self.executor: HttpFeatureExecutor | None = executor
        self.request: httpx.Request = request
        self.cache_request: CacheRequest | None = None
        self.permit: GuardPermit = GuardPermit(0)
        self.begun_s: float = 0.0
        self.outcome: Outcome = Outcome.NEUTRAL
        """Outcome as known at the headers."""
        self.body_observer: BodyObserver | None = None
        """Observer of a body that has not ended."""
        self.is_short: bool = False
        """Whether the body may be cached and is known to be short enough."""
        if executor is not None:
            url = str(request.url).partition("#")[0]
            self.cache_request = executor.cache_request(
                request.method, url, pairs(request.headers), request, key
            )

    def start(self, permit: GuardPermit) -> None:
        """Record that the call was admitted and starts now."""
        self.permit = permit
        self.begun_s = self.circuit.clock()

    def record_error(self, error: BaseException) -> None:
        """Record that the call ended without a response."""
        self.outcome = self.circuit.settle(self.permit, error, raised=True)

    def record_response(self, response: httpx.Response) -> BodyObserver | None:
        """Classify the response by its status; a success waits for the body.

        Returns:
            `body_observer`, which must be notified of the body; None: the outcome is final.
        """
        circuit, status = self.circuit, response.status_code
        self.outcome = circuit.outcome_of(response, raised=False, default=status_outcome(status))
        headers = pairs(response.headers)
        cache_policy = None
        if self.executor is not None:
            cache_policy = self.executor.cache_policy(self.cache_request, status, headers, self.begun_s)
        if self.outcome is Outcome.SUCCESS and status != SWITCHING_PROTOCOLS:
            length = body_bytes(self.request.method, status, headers)
            self.is_short = (
                cache_policy is not None and length is not None and length <= cache_policy.max_body_bytes
            )
            self.body_observer = BodyObserver(circuit, self.permit, self.begun_s, length, cache_policy)
            return self.body_observer
        circuit.record(self.permit, self.outcome, f"HTTP {status}")
        if status == TOO_MANY_REQUESTS and circuit.settings.on_429 is TooManyRequestsMode.OPEN:
            wait_s = retry_after_s(headers, time.time())
            circuit.open_for(circuit.settings.open_s if wait_s is None else wait_s)
        return None

    def build_result(
        self, cache_request: CacheRequest, response: httpx.Response, body: bytes | None
    ) -> HttpCallResult:
        """Build the result for the callers that wait for this call.

        Args:
            cache_request: of this call.
            response: to this call.
            body: complete, as received; None: it must not be shared.
        """
        shared = (
            None
            if body is None
            else cached_response(cache_request, pairs(response.headers), body, self.begun_s)
        )
        cache = None if self.executor is None else self.executor.cache
        if shared is None and cache is not None and self.outcome is not Outcome.FAILURE:
            cache.mark_unshareable(cache_request)
        return HttpCallResult(cache_request, response, shared, outcome=self.outcome)

    def build_error_result(
        self, cache_request: CacheRequest, error: Exception, *, timed_out: bool
    ) -> HttpCallResult:
        """Build the result of a call that raised, at its headers or in its body.

        Args:
            cache_request: of this call.
            error: the exception.
            timed_out: whether a time limit ended; it is shared only if it was the guard's.
        """
        if self.body_observer is not None:
            self.outcome = self.body_observer.outcome
        caller_timed_out = timed_out and self._has_shorter_limit()
        return HttpCallResult(
            cache_request, None, None, error, self.outcome, caller_timed_out, error.__traceback__
        )

    @property
    def max_wait_s(self) -> float | None:
        """Maximum wait for another caller's call: the limit of the own call; None: no limit."""
        limits = (self._limits().get("read"), self.circuit.timeout_s)
        return min((limit for limit in limits if limit is not None), default=None)

    def _has_shorter_limit(self) -> bool:
        guard_limit_s = self.circuit.timeout_s
        limits = [limit for limit in self._limits().values() if limit is not None]
        return any(guard_limit_s is None or limit < guard_limit_s for limit in limits)

    def _limits(self) -> Mapping[str, float | None]:
        return self.request.extensions.get("timeout") or {}
