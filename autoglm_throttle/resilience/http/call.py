"""One guarded HTTP call of httpx, in steps for the synchronous and the asynchronous transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import httpx

from autoglm_throttle.resilience.calls import CallResult, GuardedAttempt
from autoglm_throttle.resilience.classify import status_outcome
from autoglm_throttle.resilience.drive import Call, Steps
from autoglm_throttle.resilience.fallback import UNSET
from autoglm_throttle.resilience.http.answer import HttpAnswer
from autoglm_throttle.resilience.http.body import (
    BodyObserver,
    buffered_body,
    build_response,
    close_async,
    min_limit,
    pairs,
    read_body,
    read_body_async,
)
from autoglm_throttle.resilience.http.cache import (
    CachedResponse,
    CacheKey,
    CacheRequest,
    ResponseCache,
    cached_response,
)
from autoglm_throttle.resilience.http.fields import body_bytes, retry_after_s
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.types import (
    FallbackKind,
    GuardPermit,
    GuardRejected,
    GuardRejection,
    Outcome,
    TooManyRequestsMode,
)

SWITCHING_PROTOCOLS: Final = 101  # After status 101 the connection is no longer HTTP, so no body follows

TOO_MANY_REQUESTS: Final = 429

# Extensions of a request that replace a part of its address: with another target or virtual host, the same
# URL has another response.
ADDRESSING_EXTENSIONS: Final = ("target", "sni_hostname")


class TransportRejected(GuardRejected, httpx.TransportError):
    """The call was rejected and no fallback answered; an ``httpx.HTTPError``, as callers expect."""

    def __init__(self, rejection: GuardRejection, request: httpx.Request) -> None:
        super().__init__(rejection)
        self.request = request


class HttpCall:
    """One call."""

    __slots__ = (
        *("_begun_s", "_body", "_is_short", "_observer", "_responses", "_send", "args", "cache_request"),
        *("circuit", "replaces_values", "request"),
    )

    kwargs: Final[Mapping[str, Any]] = {}

    def __init__(
        self,
        circuit: GuardState,
        request: httpx.Request,
        send: Callable[[HttpCall], Any],
        body: Callable[..., httpx.SyncByteStream | httpx.AsyncByteStream],
    ) -> None:
        self.circuit: GuardState = circuit
        self.request: httpx.Request = request
        self.args: tuple[Any, ...] = (request,)
        self.replaces_values: bool = False
        self.cache_request: CacheRequest | None = None
        self._responses: ResponseCache | None = None
        self._send = send
        self._body = body
        self._begun_s = 0.0
        self._observer: BodyObserver | None = None  # Observer of a body that has not ended
        self._is_short = False  # Whether the body may be cached and is known to be short enough

    def use_cache(self, responses: ResponseCache, key: CacheKey | None, connection: Hashable) -> None:
        """Cache and share the response.

        ``key`` is the transport's function for the cache key, ``connection`` stands for its inner transport,
        which may have a client certificate.
        """
        request, url = self.request, str(self.request.url).partition("#")[0]
        names = (str(request.extensions.get(name)) for name in ADDRESSING_EXTENSIONS)
        route = connection, request.headers.get("host"), *names
        self._responses = responses
        headers = pairs(request.headers)
        self.cache_request = responses.request(request.method, url, headers, request, key, route)

    @property
    def flight_key(self) -> Hashable | None:
        """Key of the calls that may share a response; None: the call is not shared."""
        request = self.cache_request
        if request is None or self._responses is None or not request.is_cacheable:
            return None
        return None if self._responses.is_unshareable(request) else request.base_key

    @property
    def max_wait_s(self) -> float | None:
        """Maximum wait for another caller's call: the limit of the own call; None: no limit."""
        return min_limit(self._limits().get("read"), self.circuit.timeout_s)

    def has_cached(self) -> bool:
        """Whether a usable response is cached."""
        return self._responses is not None and self._responses.find(self.cache_request) is not None

    def cached(self, cause: str) -> object:
        """Return the cached response, or `UNSET`."""
        return UNSET if self._responses is None else self._responses.find_answer(self.cache_request, cause)

    def check(self, value: object, kind: FallbackKind) -> None:
        """Raise TypeError unless a fallback gave an `HttpAnswer` or an ``httpx.Response``."""
        if not isinstance(value, HttpAnswer | httpx.Response):
            given = type(value).__name__
            raise TypeError(f"the {kind} fallback of HTTP must give an HttpAnswer or a Response, not {given}")

    def rejected(self, rejection: GuardRejection) -> GuardRejected:
        """Return the exception of a rejection."""
        return TransportRejected(rejection, self.request)

    def run(self, *, sheds: bool = False) -> Steps[GuardedAttempt]:
        """Make the call alone; its body is cached at its end. ``sheds``: unless its feature is shed."""
        circuit = self.circuit
        fast = circuit.fast
        permit = fast.permit if fast.is_direct or (fast.is_synced and not sheds) else None
        if permit is None:
            answer: GuardPermit | GuardRejection = yield Call(circuit.allow, circuit.allow_async, (sheds,))
            if isinstance(answer, GuardRejection):
                return GuardedAttempt(rejection=answer)
            permit = answer
        else:
            fast.calls += 1
        self._begun_s = circuit.clock()
        try:
            response: httpx.Response = yield Call(self._send, self._send, (self,))
        except BaseException as error:
            outcome = circuit.settle(permit, error, raised=True)
            if isinstance(error, Exception):
                return GuardedAttempt(error=error, outcome=outcome)
            raise
        return GuardedAttempt(response, outcome=self._record_response(permit, response))

    def run_shared(self) -> Steps[CallResult]:
        """Make the call for all callers that wait for it, and read a body that they can share."""
        attempted = yield from self.run()
        body: bytes | None = None
        if self._is_short:
            try:
                body = yield Call(read_body, read_body_async, (attempted.value,))
            except Exception as error:  # noqa: BLE001 - passed on to all waiters
                outcome = attempted.outcome if self._observer is None else self._observer.outcome
                attempted = GuardedAttempt(error=error, outcome=outcome)
        return self._result(attempted, body)

    def copy_of(self, value: object) -> object:
        """Return a shared response for this caller; `UNSET`: it varies by a field of the request."""
        request = self.cache_request
        if not isinstance(value, CachedResponse) or request is None or not value.fits(request):
            return UNSET
        return build_response(value.with_age(self.circuit.clock()), self.request)

    def closing(self, attempted: GuardedAttempt) -> Call | None:
        """Return the step that closes a response which a fallback replaces."""
        response = attempted.value
        if not isinstance(response, httpx.Response):
            return None
        return Call(httpx.Response.close, close_async, (response,))

    def _record_response(self, permit: GuardPermit, response: httpx.Response) -> Outcome:
        """Classify the response by its status; a success waits for the body."""
        circuit, status = self.circuit, response.status_code
        outcome = circuit.outcome_of(response, raised=False, default=status_outcome(status))
        headers = pairs(response.headers)
        responses = self._responses
        policy = None
        if responses is not None:
            policy = responses.policy(self.cache_request, status, headers, self._begun_s)
        if outcome is Outcome.SUCCESS and status != SWITCHING_PROTOCOLS:
            length = body_bytes(self.request.method, status, headers)
            self._is_short = policy is not None and length is not None and length <= policy.max_body_bytes
            self._observer = BodyObserver(circuit, permit, self._begun_s, length, policy)
            if response.is_closed:  # the body arrived with its headers, as from one without a network
                self._observer.complete(buffered_body(response))
            else:
                response.stream = self._body(response.stream, self._observer, circuit, self.request)
            return outcome
        circuit.record(permit, outcome, f"HTTP {status}")
        if status == TOO_MANY_REQUESTS and circuit.settings.on_429 is TooManyRequestsMode.OPEN:
            wait_s = retry_after_s(headers, time.time())
            circuit.open_for(circuit.settings.open_s if wait_s is None else wait_s)
        return outcome

    def _result(self, attempted: GuardedAttempt, body: bytes | None) -> CallResult:
        """Build the result for the callers that wait for this call."""
        request, error = self.cache_request, attempted.error
        if error is not None:
            caller_timed_out = isinstance(error, httpx.TimeoutException) and self._has_shorter_limit()
            return CallResult(attempted, is_shareable=not caller_timed_out, trace=error.__traceback__)
        if request is None or attempted.rejection is not None:
            return CallResult(attempted)
        if body is not None:
            headers = pairs(attempted.value.headers)
            return CallResult(attempted, cached_response(request, headers, body, self._begun_s))
        if self._responses is not None and attempted.outcome is not Outcome.FAILURE:
            self._responses.mark_unshareable(request)
        return CallResult(attempted)

    def _has_shorter_limit(self) -> bool:
        guard_limit_s = self.circuit.timeout_s
        limits = [limit for limit in self._limits().values() if limit is not None]
        return any(guard_limit_s is None or limit < guard_limit_s for limit in limits)

    def _limits(self) -> Mapping[str, float | None]:
        return self.request.extensions.get("timeout") or {}
